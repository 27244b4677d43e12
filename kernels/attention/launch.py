"""Runs the traversal on torch tensors: checks shapes, picks dtypes, launches. Knows one call; keeps no state between calls."""

from typing import NamedTuple

import numpy as np
import torch
import triton.language as tl

from kernels.attention.rules import Rule
from kernels.attention.schedule import Launch
from kernels.attention.tiles import next_power_of_two
from kernels.attention.traversal import attend_kernel, merge_kernel
from kernels.mode import INTERPRETED

DOT_DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
HEAD_DIMS = (64, 80, 96, 128, 256)
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)


class KVCache(NamedTuple):
    """One layer's pool. k, v: [num_blocks, kv_heads, block_size, head_dim], each block contiguous; scales: fp32 [kv_heads] for fp8."""

    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None


class Batch(NamedTuple):
    """Where a step's sequences lie; all int32 on the device.

    rows: [num_seqs] rows of the table; q_starts: [num_seqs + 1]; kv_lens: [num_seqs], this step's tokens included.
    """

    rows: torch.Tensor
    q_starts: torch.Tensor
    kv_lens: torch.Tensor


def kv_form(dtype: torch.dtype, capability: int) -> str:
    """How K and V are read: "same" where they hold numbers of the product's kind, "fp8" by the device's conversion, "bytes" by hand."""
    if dtype != torch.float8_e4m3fn:
        return "same"
    return "fp8" if capability >= 89 else "bytes"


def check(q: torch.Tensor, out: torch.Tensor, kv: KVCache, paged: bool) -> None:
    """Raises ValueError where the kernel would read wrongly: shapes, strides and dtypes that it does not take."""
    _, heads, head_dim = q.shape
    _, kv_heads, block_size, kv_dim = kv.k.shape
    if head_dim not in HEAD_DIMS or kv_dim != head_dim:
        raise ValueError(
            f"head_dim must be one of {HEAD_DIMS} in q and KV, got {head_dim} and {kv_dim}"
        )
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads do not divide among {kv_heads} KV heads")
    if paged and block_size not in BLOCK_SIZES:
        raise ValueError(f"block_size must be one of {BLOCK_SIZES}, got {block_size}")
    if q.dtype not in DOT_DTYPES:
        raise ValueError(f"q must be fp16, bf16 or fp32, got {q.dtype}")
    if kv.k.dtype not in (q.dtype, torch.float8_e4m3fn) or kv.v.dtype != kv.k.dtype:
        raise ValueError(f"KV must be of q's dtype or e4m3, got {kv.k.dtype} and {kv.v.dtype}")
    if kv.k.dtype == torch.float8_e4m3fn and (kv.k_scale is None or kv.v_scale is None):
        raise ValueError("e4m3 KV needs k_scale and v_scale")
    for name, x in (("q", q), ("out", out)):
        if x.stride()[1:] != (head_dim, 1):
            raise ValueError(
                f"{name} must be contiguous in heads and head_dim, got strides {x.stride()}"
            )
    inner = (block_size * head_dim, head_dim, 1)
    if kv.k.stride() != kv.v.stride() or kv.k.stride()[1:] != inner:
        raise ValueError(f"each block of K and V must be contiguous, got strides {kv.k.stride()}")


def attend(
    out: torch.Tensor,
    q: torch.Tensor,
    kv: KVCache,
    table: torch.Tensor,
    batch: Batch,
    launches: tuple[Launch, ...],
    rule: Rule,
    scale: float,
    *,
    paged: bool = True,
    capability: int = 90,
) -> None:
    """Writes attention of `q` over the cache into `out`, for the sequences that `launches` name.

    Args:
        out: [num_tokens, heads, head_dim], dtype of q; other tokens' rows are left as they are.
        q: [num_tokens, heads, head_dim] fp16, bf16 or fp32; heads and head_dim contiguous.
        kv: this layer's cache; where not paged, block i is the whole of row i.
        table: int32 [rows, max_blocks]; entries that cover no key are not read.
        batch: where the sequences lie.
        launches: from `schedule`, for the same lengths.
        rule: who sees whom.
        scale: factor of the products, usually head_dim ** -0.5.
        paged: False for the contiguous build.
        capability: 10 * major + minor of the device.

    Raises:
        ValueError: shapes, strides or dtypes that the kernel does not take.
    """
    if not launches:
        return
    check(q, out, kv, paged)
    _, heads, head_dim = q.shape
    _, kv_heads, block_size, _ = kv.k.shape
    group = heads // kv_heads
    form = kv_form(kv.k.dtype, capability)
    k, v = (kv.k.view(torch.uint8), kv.v.view(torch.uint8)) if form == "bytes" else (kv.k, kv.v)
    dot = tl.float32 if INTERPRETED and q.dtype == torch.bfloat16 else DOT_DTYPES[q.dtype]
    dim = next_power_of_two(head_dim)
    for launch in launches:
        tile, splits = launch.tile, launch.splits
        if group > tile.m:
            raise ValueError(f"{group} query heads a KV head do not fit a tile of {tile.m} rows")
        target, lse = out, out
        if splits > 1:
            shares = (len(launch.tile_seqs), kv_heads, splits, tile.m)
            lse = q.new_empty(shares, dtype=torch.float32)
            target = q.new_empty((*shares, head_dim), dtype=torch.float32)
        index = torch.from_numpy(np.stack([launch.tile_seqs, launch.tile_tokens])).to(q.device)
        share = torch.tensor([launch.share], dtype=torch.int32, device=q.device)
        attend_kernel[(len(launch.tile_seqs), kv_heads, splits)](
            target, lse, q, k, v,
            kv.k_scale if kv.k_scale is not None else lse,
            kv.v_scale if kv.v_scale is not None else lse,
            table, index[0], index[1], batch.rows, batch.q_starts, batch.kv_lens, share,
            rule.args, scale, q.stride(0), out.stride(0), kv.k.stride(0), table.stride(0),
            SPAN=rule.span, SCORE=rule.score, START=rule.start,
            GROUP=group, HEAD_DIM=head_dim, DIM=dim, BLOCK_SIZE=block_size, M=tile.m, N=tile.n,
            PAGED=paged, SPLIT=splits > 1, KV_FORM=form, DOT=dot,
            PRECISION="tf32x3" if dot == tl.float32 and not INTERPRETED else "ieee",
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        if splits > 1:
            merge_kernel[(len(launch.tile_seqs), kv_heads, tile.m // group * group)](
                out, target, lse, index[0], index[1], batch.q_starts, out.stride(0), splits,
                GROUP=group, HEAD_DIM=head_dim, DIM=dim, M=tile.m, S=next_power_of_two(splits),
            )  # fmt: skip
