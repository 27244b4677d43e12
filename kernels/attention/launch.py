"""Runs the traversal on torch tensors: checks shapes, picks dtypes, launches. Knows one call; keeps no state between calls."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl

from kernels.attention.merge import merge_kernel
from kernels.attention.rules import Rule
from kernels.attention.tiles import Tile
from kernels.attention.traversal import attend_kernel
from kernels.layout import BLOCK_SIZES, E4M3, KVCache, check_cache
from kernels.mode import INTERPRETED
from kernels.tile_sizes import next_power_of_two

DOT_DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


class Batch(NamedTuple):
    """Where a step's sequences lie; all int32 on the device.

    rows: [num_seqs] rows of the table; q_starts: [num_seqs + 1]; kv_lens: [num_seqs], this step's tokens included.
    """

    rows: torch.Tensor
    q_starts: torch.Tensor
    kv_lens: torch.Tensor


def kv_form(dtype: torch.dtype, capability: int) -> str:
    """How K and V are read: "same" where they hold numbers of the product's kind, "fp8" by the device's conversion, "bytes" by hand."""
    if dtype != E4M3:
        return "same"
    return "fp8" if capability >= 89 else "bytes"


def constants(
    rule: Rule,
    tile: Tile,
    *,
    group: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    form: str,
    split: bool,
    paged: bool,
) -> dict[str, Any]:
    """The compile-time arguments and build options of `attend_kernel`.

    fp32 is multiplied in three tensor-core products of its parts, about as exact as fp32 itself; heads of 256 would not leave
    enough registers for the parts and are multiplied plainly.
    """
    parts = dtype == torch.float32 and head_dim <= 128 and not INTERPRETED
    dot = tl.float32 if INTERPRETED and dtype == torch.bfloat16 else DOT_DTYPES[dtype]
    return {
        "SPAN": rule.span,
        "SCORE": rule.score,
        "START": rule.start,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "DIM": next_power_of_two(head_dim),
        "BLOCK_SIZE": block_size,
        "M": tile.m,
        "N": tile.n,
        "PAGED": paged,
        "SPLIT": split,
        "KV_FORM": form,
        "DOT": dot,
        "PRECISION": "tf32x3" if parts else "ieee",
        "num_warps": tile.warps,
        "num_stages": tile.stages,
        "enable_fp_fusion": True,
    }


def merge_constants(tile: Tile, group: int, head_dim: int, splits: int) -> dict[str, Any]:
    """The compile-time arguments and build options of `merge_kernel`."""
    return {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "DIM": next_power_of_two(head_dim),
        "M": tile.m,
        "S": next_power_of_two(splits),
        "num_warps": 4,
        "num_stages": 1,
        "enable_fp_fusion": True,
    }


class Placed(NamedTuple):
    """A launch on the device: its index arrays, and room for the shares' results, which serves one layer after another."""

    tile: Tile
    tokens: int
    """Most queries of one tile."""
    splits: int
    tile_seqs: torch.Tensor
    """int32 [tiles], -1 for none."""
    tile_tokens: torch.Tensor
    """int32 [tiles]."""
    share: torch.Tensor
    """int32 [1]."""
    partial: torch.Tensor
    """fp32 [tiles, kv_heads, splits, M, head_dim] where keys are split; else anything."""
    lse: torch.Tensor
    """fp32 [tiles, kv_heads, splits, M] where keys are split; else anything."""


def place(
    tile: Tile,
    tokens: int,
    splits: int,
    tile_seqs: torch.Tensor,
    tile_tokens: torch.Tensor,
    share: torch.Tensor,
    *,
    kv_heads: int,
    head_dim: int,
) -> Placed:
    """A launch whose index arrays are on the device already; makes room for its shares there."""
    shares = (len(tile_seqs), kv_heads, splits, tile.m) if splits > 1 else (1,)
    lse = torch.empty(shares, dtype=torch.float32, device=tile_seqs.device)
    partial = lse.new_empty((*shares, head_dim)) if splits > 1 else lse
    return Placed(tile, tokens, splits, tile_seqs, tile_tokens, share, partial, lse)


def attend(
    out: torch.Tensor,
    q: torch.Tensor,
    kv: KVCache,
    table: torch.Tensor,
    batch: Batch,
    launches: Sequence[Placed],
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
        launches: of `schedule`, for the same lengths, placed on the device.
        rule: who sees whom.
        scale: factor of the products, usually head_dim ** -0.5.
        paged: False for the contiguous build.
        capability: 10 * major + minor of the device.

    Raises:
        ValueError: shapes, strides or dtypes that the kernel does not take.
    """
    if not launches:
        return
    _, heads, head_dim = q.shape
    check_cache(kv, q.dtype, head_dim)
    _, kv_heads, block_size, _ = kv.k.shape
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads do not divide among {kv_heads} KV heads")
    if paged and block_size not in BLOCK_SIZES:
        raise ValueError(f"block_size must be one of {BLOCK_SIZES}, got {block_size}")
    for name, x in (("q", q), ("out", out)):
        if x.stride()[1:] != (head_dim, 1):
            raise ValueError(
                f"{name} must be contiguous in heads and head_dim, got strides {x.stride()}"
            )
    group = heads // kv_heads
    form = kv_form(kv.k.dtype, capability)
    k, v = (kv.k.view(torch.uint8), kv.v.view(torch.uint8)) if form == "bytes" else (kv.k, kv.v)
    for launch in launches:
        split = launch.splits > 1
        if group > launch.tile.m:
            raise ValueError(
                f"{group} query heads a KV head do not fit a tile of {launch.tile.m} rows"
            )
        attend_kernel[(len(launch.tile_seqs), kv_heads, launch.splits)](
            launch.partial if split else out, launch.lse, q, k, v,
            launch.lse if kv.k_scale is None else kv.k_scale,
            launch.lse if kv.v_scale is None else kv.v_scale,
            table, launch.tile_seqs, launch.tile_tokens, batch.rows, batch.q_starts, batch.kv_lens, launch.share,
            rule.args, scale, q.stride(0), out.stride(0), kv.k.stride(0), table.stride(0),
            **constants(
                rule, launch.tile, group=group, head_dim=head_dim, block_size=block_size, dtype=q.dtype,
                form=form, split=split, paged=paged,
            ),
        )  # fmt: skip
        if split:
            merge_kernel[(len(launch.tile_seqs), kv_heads, launch.tokens * group)](
                out, launch.partial, launch.lse, launch.tile_seqs, launch.tile_tokens, batch.q_starts, out.stride(0), launch.splits,
                **merge_constants(launch.tile, group, head_dim, launch.splits),
            )  # fmt: skip
