"""Writes a step's K and V into the paged cache, rotating Q and K on the way. Knows slots and positions; knows no sequences.

Rotation is of halves: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), x1 the first half of a head's elements (RoFormer, arXiv
2104.09864, section 3.4.2, in the layout of Llama checkpoints). Arithmetic is fp32, rounded once to the stored dtype.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kernels.fp8 import encode_e4m3
from kernels.layout import E4M3, KVCache, check_cache
from kernels.tile_sizes import next_power_of_two

TOKENS = 16
"""Tokens of one program."""


@triton.jit(do_not_specialize=["num_tokens"])
def write_kernel(
    q_ptr,  # [num_tokens, HEADS, HEAD_DIM], rotated in place
    k_ptr,  # [num_tokens, kv_heads, HEAD_DIM]
    v_ptr,  # [num_tokens, kv_heads, HEAD_DIM]
    k_pool_ptr,  # [num_blocks, kv_heads, BLOCK_SIZE, HEAD_DIM]; uint8 where FP8
    v_pool_ptr,  # as k_pool
    slot_ptr,  # int32 [num_tokens], -1 for tokens that have no place
    position_ptr,  # int32 [num_tokens]
    rotation_ptr,  # fp32 [max_positions, HEAD_DIM]: cosines, then sines, HEAD_DIM / 2 each
    k_scale_ptr,  # fp32 [kv_heads]; read where FP8
    v_scale_ptr,  # as k_scale
    num_tokens,
    q_stride,
    k_stride,
    v_stride,
    block_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,  # HEAD_DIM / 2 rounded up to a power of two
    BLOCK_SIZE: tl.constexpr,
    T: tl.constexpr,
    FP8: tl.constexpr,
):
    """Rotates T tokens of one query head, or rotates and writes T tokens of one KV head.

    Traffic of all programs together in bytes, for `tokens` tokens of which `placed` have a slot; `e` and `kv` are the bytes of an
    element, FP8 is 0 or 1. (The rotation is read for each head: the multiprocessor's cache serves all but the first.)

        loads: (HEADS + kv_heads) * tokens * (4 + 4 * HEAD_DIM) + HEADS * tokens * HEAD_DIM * e + kv_heads * (4 * tokens + 2 * placed * HEAD_DIM * e + 8 * FP8 * programs)
        stores: HEADS * tokens * HEAD_DIM * e + 2 * kv_heads * placed * HEAD_DIM * kv
    """
    token = tl.program_id(0) * T + tl.arange(0, T)
    head = tl.program_id(1)
    d = tl.arange(0, HALF)[None, :]
    half: tl.constexpr = HEAD_DIM // 2
    token_live = token < num_tokens
    live = token_live[:, None] & (d < half)
    wide = token.to(tl.int64)[:, None]

    position = tl.load(position_ptr + token, mask=token_live, other=0).to(tl.int64)[:, None]
    cos = tl.load(rotation_ptr + position * HEAD_DIM + d, mask=live, other=0.0)
    sin = tl.load(rotation_ptr + position * HEAD_DIM + half + d, mask=live, other=0.0)
    if head < HEADS:
        q = q_ptr + wide * q_stride + head * HEAD_DIM + d
        x1 = tl.load(q, mask=live, other=0.0).to(tl.float32)  # wide
        x2 = tl.load(q + half, mask=live, other=0.0).to(tl.float32)  # wide
        tl.store(q, (x1 * cos - x2 * sin).to(q_ptr.dtype.element_ty), mask=live)
        tl.store(q + half, (x2 * cos + x1 * sin).to(q_ptr.dtype.element_ty), mask=live)
    else:
        kv_head = head - HEADS
        slot = tl.load(slot_ptr + token, mask=token_live, other=-1)[:, None]
        live &= slot >= 0
        k = k_ptr + wide * k_stride + kv_head * HEAD_DIM + d
        v = v_ptr + wide * v_stride + kv_head * HEAD_DIM + d
        x1 = tl.load(k, mask=live, other=0.0).to(tl.float32)  # wide
        x2 = tl.load(k + half, mask=live, other=0.0).to(tl.float32)  # wide
        k1 = x1 * cos - x2 * sin
        k2 = x2 * cos + x1 * sin
        v1 = tl.load(v, mask=live, other=0.0)  # wide
        v2 = tl.load(v + half, mask=live, other=0.0)  # wide
        place = (
            (slot // BLOCK_SIZE).to(tl.int64) * block_stride
            + (kv_head * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM
            + d
        )
        if FP8:
            k_inverse = 1.0 / tl.load(k_scale_ptr + kv_head)
            v_inverse = 1.0 / tl.load(v_scale_ptr + kv_head)
            tl.store(k_pool_ptr + place, encode_e4m3(k1 * k_inverse), mask=live)
            tl.store(k_pool_ptr + place + half, encode_e4m3(k2 * k_inverse), mask=live)
            tl.store(v_pool_ptr + place, encode_e4m3(v1.to(tl.float32) * v_inverse), mask=live)
            tl.store(
                v_pool_ptr + place + half, encode_e4m3(v2.to(tl.float32) * v_inverse), mask=live
            )
        else:
            dtype = k_pool_ptr.dtype.element_ty
            tl.store(k_pool_ptr + place, k1.to(dtype), mask=live)
            tl.store(k_pool_ptr + place + half, k2.to(dtype), mask=live)
            tl.store(v_pool_ptr + place, v1.to(dtype), mask=live)
            tl.store(v_pool_ptr + place + half, v2.to(dtype), mask=live)


def write_constants(
    heads: int, head_dim: int, block_size: int, dtype: torch.dtype, fp8: bool
) -> dict[str, Any]:
    """The compile-time arguments and build options of `write_kernel`: as many threads as 16-byte pieces in a half."""
    half = next_power_of_two(head_dim // 2)
    return {
        "HEADS": heads,
        "HEAD_DIM": head_dim,
        "HALF": half,
        "BLOCK_SIZE": block_size,
        "T": TOKENS,
        "FP8": fp8,
        "num_warps": TOKENS * half * dtype.itemsize // 512,
        "num_stages": 1,
        "enable_fp_fusion": True,
    }


def rotation_table(max_positions: int, head_dim: int, theta: float) -> torch.Tensor:
    """[max_positions, head_dim] fp32: cosines then sines of position * theta ** (-2 i / head_dim), computed in float64."""
    inverse = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(max_positions, dtype=torch.float64)[:, None] * inverse
    return torch.cat([angle.cos(), angle.sin()], 1).float()


def write_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cache: KVCache,
    slots: torch.Tensor,
    positions: torch.Tensor,
    rotation: torch.Tensor,
) -> None:
    """Rotates `q` in place, and writes rotated `k` and `v` to their slots.

    Args:
        q: [num_tokens, heads, head_dim] fp16, bf16 or fp32; heads and head_dim contiguous.
        k: [num_tokens, kv_heads, head_dim], of q's dtype.
        v: as k.
        cache: one layer's pool, of q's dtype or e4m3 with scales; a stored e4m3 value times its scale is the number.
        slots: int32 [num_tokens], block * block_size + offset; -1: not written. No slot twice.
        positions: int32 [num_tokens].
        rotation: fp32 [max_positions, head_dim] from `rotation_table`.

    Raises:
        ValueError: strides or dtypes that the kernel does not take.
    """
    num_tokens, heads, head_dim = q.shape
    _, kv_heads, block_size, _ = cache.k.shape
    if num_tokens == 0:
        return
    check_cache(cache, q.dtype, head_dim)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.stride()[1:] != (head_dim, 1) or x.dtype != q.dtype:
            raise ValueError(
                f"{name} must be {q.dtype} and contiguous in heads and head_dim,"
                f" got {x.dtype} with strides {x.stride()}"
            )
    fp8 = cache.k.dtype == E4M3
    k_pool, v_pool = (x.view(torch.uint8) if fp8 else x for x in (cache.k, cache.v))
    write_kernel[(triton.cdiv(num_tokens, TOKENS), heads + kv_heads)](
        q, k, v, k_pool, v_pool, slots, positions, rotation,
        cache.k_scale if fp8 else rotation, cache.v_scale if fp8 else rotation,
        num_tokens, q.stride(0), k.stride(0), v.stride(0), cache.k.stride(0),
        **write_constants(heads, head_dim, block_size, q.dtype, fp8),
    )  # fmt: skip
