"""Moves whole blocks: within the pool (copy-on-write), out of it and into it (swap). Knows bytes; knows no dtypes and no heads.

A pool is [planes, num_blocks, ...], a plane being one layer's K or V, each block of it contiguous and a multiple of 16 bytes. A
staging area is [blocks, planes, ...], so that all of a block is one run of memory that a copy engine moves at once. One launch moves any
number of blocks of all planes. Moves are not ordered: no block may be read and written by one call.
"""

from typing import Any

import torch
import triton
import triton.language as tl

WORDS = 1024
"""32-bit words of one program."""


@triton.jit
def move_kernel(
    dst_ptr,  # int32, `words` together for each block of each plane
    src_ptr,  # as dst
    dst_id_ptr,  # int32 [moves], read where DST_IDS; otherwise move i goes to block i
    src_id_ptr,  # int32 [moves], read where SRC_IDS
    words,
    dst_plane_stride,
    dst_block_stride,
    src_plane_stride,
    src_block_stride,
    DST_IDS: tl.constexpr,
    SRC_IDS: tl.constexpr,
    W: tl.constexpr,
):
    """Moves W words of one block of one plane; an id of -1 moves nothing.

    Traffic of all programs of one move and plane together in bytes:

        loads: 4 * words + 4 * (DST_IDS + SRC_IDS) * programs
        stores: 4 * words
    """
    move = tl.program_id(0)
    plane = tl.program_id(1).to(tl.int64)
    word = tl.program_id(2) * W + tl.arange(0, W)
    dst = tl.load(dst_id_ptr + move) if DST_IDS else move
    src = tl.load(src_id_ptr + move) if SRC_IDS else move
    if (dst < 0) | (src < 0):
        return
    live = word < words
    from_ptrs = src_ptr + plane * src_plane_stride + src.to(tl.int64) * src_block_stride + word
    to_ptrs = dst_ptr + plane * dst_plane_stride + dst.to(tl.int64) * dst_block_stride + word
    content = tl.load(from_ptrs, mask=live, other=0)  # wide
    tl.store(to_ptrs, content, mask=live)


def move_constants(dst_ids: bool, src_ids: bool) -> dict[str, Any]:
    """The compile-time arguments and build options of `move_kernel`."""
    return {
        "DST_IDS": dst_ids,
        "SRC_IDS": src_ids,
        "W": WORDS,
        "num_warps": 4,
        "num_stages": 1,
        "enable_fp_fusion": True,
    }


def as_words(blocks: torch.Tensor) -> torch.Tensor:
    """[a, b, words] int32 over the memory of [a, b, ...]. Raises ValueError unless contiguous, in multiples of 16 bytes."""
    if not blocks.is_contiguous():
        raise ValueError(f"blocks must be contiguous, got strides {blocks.stride()}")
    words = blocks.flatten(2).view(torch.int32)
    if words.shape[2] % 4:
        raise ValueError(f"a block must be a multiple of 16 bytes, got {4 * words.shape[2]}")
    return words


def move_blocks(
    dst: torch.Tensor,
    src: torch.Tensor,
    dst_ids: torch.Tensor | None,
    src_ids: torch.Tensor | None,
) -> None:
    """Copies block src_ids[i] of `src` to block dst_ids[i] of `dst` in all planes; None stands for 0, 1, 2...

    Args:
        dst: int32 [planes, blocks, words] from `as_words`, or a transposed view of it.
        src: as dst, blocks of the same size; may be `dst` (then no block is both read and written).
        dst_ids: int32 on the device, -1 for no move; no id twice.
        src_ids: int32 on the device.
    """
    ids = dst_ids if dst_ids is not None else src_ids
    if ids is None or len(ids) == 0:
        return
    planes, _, words = dst.shape
    if src.shape[0] != planes or src.shape[2] != words:
        raise ValueError(f"planes and words differ: {tuple(dst.shape)} and {tuple(src.shape)}")
    move_kernel[(len(ids), planes, triton.cdiv(words, WORDS))](
        dst, src,
        dst_ids if dst_ids is not None else ids, src_ids if src_ids is not None else ids,
        words, dst.stride(0), dst.stride(1), src.stride(0), src.stride(1),
        **move_constants(dst_ids is not None, src_ids is not None),
    )  # fmt: skip


def copy_blocks(pool: torch.Tensor, src_ids: torch.Tensor, dst_ids: torch.Tensor) -> None:
    """Copies within `pool` [planes, num_blocks, ...], as copy-on-write asks: batched, all planes in one launch."""
    words = as_words(pool)
    move_blocks(words, words, dst_ids, src_ids)


def gather_blocks(staging: torch.Tensor, pool: torch.Tensor, ids: torch.Tensor) -> None:
    """Packs pool blocks `ids` into staging[0], staging[1]... of `staging` [blocks, planes, ...]."""
    move_blocks(as_words(staging).transpose(0, 1), as_words(pool), None, ids)


def scatter_blocks(pool: torch.Tensor, staging: torch.Tensor, ids: torch.Tensor) -> None:
    """Spreads staging[i] to pool block ids[i]."""
    move_blocks(as_words(pool), as_words(staging).transpose(0, 1), ids, None)
