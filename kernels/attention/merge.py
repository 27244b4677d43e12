"""Joins the shares that split keys leave. Knows partial results; knows no cache and no rule."""

import triton
import triton.language as tl

from kernels.attention.traversal import LOG2E


@triton.jit(do_not_specialize=["splits"])
def merge_kernel(
    out_ptr,  # [num_tokens, heads, HEAD_DIM], heads and HEAD_DIM contiguous
    partial_ptr,  # fp32 [tiles, kv_heads, splits, M, HEAD_DIM]
    lse_ptr,  # fp32 [tiles, kv_heads, splits, M]
    tile_seq_ptr,  # the launch's, as in attend_kernel
    tile_token_ptr,
    q_start_ptr,
    out_stride,
    splits,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    M: tl.constexpr,
    S: tl.constexpr,  # power of two, splits or more
):
    """Joins the shares of one row of a tile: their mean weighted by exp(lse). A share of -inf has no values and is not read.

    Traffic of one program in bytes, `shares` of the `splits` having values:

        loads: 16 + 4 * splits + 4 * shares * HEAD_DIM
        stores: HEAD_DIM * out
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    r = tl.program_id(2)
    seq = tl.load(tile_seq_ptr + tile)
    if seq < 0:
        return
    token = tl.load(tile_token_ptr + tile) + r // GROUP
    q_start = tl.load(q_start_ptr + seq)
    if q_start + token >= tl.load(q_start_ptr + seq + 1):
        return
    s = tl.arange(0, S)
    d = tl.arange(0, DIM)
    place = ((tile * tl.num_programs(1) + kv_head).to(tl.int64) * splits + s) * M + r
    lse = tl.load(lse_ptr + place, mask=s < splits, other=float("-inf"))
    top = tl.max(lse, 0)
    weight = tl.exp2((lse - tl.where(top > float("-inf"), top, 0.0)) * LOG2E)
    total = tl.sum(weight, 0)
    live = (lse > float("-inf"))[:, None] & (d < HEAD_DIM)[None, :]
    p_ptrs = partial_ptr + place[:, None] * HEAD_DIM + d[None, :]
    part = tl.load(p_ptrs, mask=live, other=0.0)  # wide
    mixed = tl.sum(part * weight[:, None], 0) / tl.where(total > 0.0, total, 1.0)
    head = kv_head * GROUP + r % GROUP
    o_ptrs = out_ptr + (q_start + token).to(tl.int64) * out_stride + head * HEAD_DIM + d
    tl.store(o_ptrs, mixed.to(out_ptr.dtype.element_ty), mask=d < HEAD_DIM)
