"""A paged cache with a batch over it, for attention tests: scattered blocks, and NaN in every slot that holds no key."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from kernels.attention.launch import Batch, attend, place
from kernels.attention.rules import Rule
from kernels.attention.schedule import schedule
from kernels.attention.tiles import Tile
from kernels.layout import KVCache
from tests.kernels.device import DEVICE, ints
from tests.reference.paged_attention import Score, Sequences, attention

SMALL, LARGE = Tile(16, 32, 4, 2), Tile(32, 32, 4, 2)


class Scene(NamedTuple):
    """Everything on the CPU; `run` moves it to the device under test."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    batch: Sequences
    scales: tuple[torch.Tensor, torch.Tensor] | None


def make_scene(
    lengths: Sequence[tuple[int, int]],
    *,
    block_size: int = 16,
    head_dim: int = 64,
    kv_heads: int = 2,
    group: int = 3,
    dtype: torch.dtype = torch.float32,
    fp8: bool = False,
    seed: int = 0,
    magnitude: float = 1.0,
    shared_blocks: int = 0,
) -> Scene:
    """lengths: (queries, keys) of each sequence. `shared_blocks`: leading blocks that all sequences long enough have in common."""
    rng = np.random.default_rng(seed)
    q_lens, kv_lens = [q for q, _ in lengths], [kv for _, kv in lengths]
    counts = [-(-n // block_size) for n in kv_lens]
    order = rng.permutation(sum(counts) + 3)
    rows = rng.permutation(len(lengths) + 2)[: len(lengths)]
    table = np.full((len(lengths) + 2, max(counts, default=0) + 2), -1, np.int32)
    filled = np.zeros((len(order), block_size), bool)
    taken = 0
    for row, count, kv_len in zip(rows, counts, kv_lens, strict=True):
        table[row, :count] = order[taken : taken + count]
        if count >= shared_blocks:
            table[row, :shared_blocks] = order[:shared_blocks]
        taken += count
        positions = np.arange(kv_len)
        filled[table[row, positions // block_size], positions % block_size] = True

    def pool() -> torch.Tensor:
        x = rng.standard_normal((len(order), kv_heads, block_size, head_dim)) * magnitude
        x[~np.broadcast_to(filled[:, None, :], x.shape[:3])] = np.nan
        return torch.from_numpy(x).to(torch.float8_e4m3fn if fp8 else dtype)

    q = torch.from_numpy(rng.standard_normal((sum(q_lens), kv_heads * group, head_dim)) * magnitude)
    scales = None
    if fp8:
        scales = tuple(torch.from_numpy(rng.uniform(0.5, 2.0, kv_heads)).float() for _ in "kv")
    batch = Sequences(rows.tolist(), q_lens, kv_lens)
    return Scene(q.to(dtype), pool(), pool(), torch.from_numpy(table), batch, scales)  # type: ignore[arg-type]


def run(
    scene: Scene,
    rule: Rule,
    *,
    num_sms: int = 1,
    force_share: int | None = None,
    small: Tile = SMALL,
    large: Tile = LARGE,
    **options: Any,
) -> torch.Tensor:
    """The kernel's answer, on the CPU; the output is poisoned first. `force_share`: split keys into shares of so many tiles."""
    q, k, v = (x.to(DEVICE) for x in (scene.q, scene.k, scene.v))
    heads, kv_heads = q.shape[1], k.shape[1]
    q_lens, kv_lens = (np.array(x, np.int32) for x in scene.batch[1:])
    launches = schedule(
        q_lens,
        kv_lens,
        small=small,
        large=large,
        group=heads // kv_heads,
        kv_heads=kv_heads,
        num_sms=num_sms,
    )
    if force_share is not None:
        launches = tuple(
            x._replace(
                share=force_share, splits=-(-int(-(-kv_lens.max() // x.tile.n)) // force_share)
            )
            for x in launches
        )
    starts = np.concatenate([[0], np.cumsum(q_lens)]).astype(np.int32)
    placed = [
        place(
            x.tile,
            x.tokens,
            x.splits,
            ints(x.tile_seqs),
            ints(x.tile_tokens),
            ints([x.share]),
            kv_heads=kv_heads,
            head_dim=q.shape[2],
        )
        for x in launches
    ]
    for x in placed:
        x.partial.fill_(float("nan"))
        x.lse.fill_(float("nan"))
    batch = Batch(ints(scene.batch.rows), ints(starts), ints(kv_lens))
    out = torch.full_like(q, float("nan"))
    scales = () if scene.scales is None else tuple(x.to(DEVICE) for x in scene.scales)
    attend(
        out,
        q,
        KVCache(k, v, *scales),
        scene.table.to(DEVICE),
        batch,
        placed,
        rule,
        q.shape[2] ** -0.5,
        **options,
    )
    return out.cpu()


def expected(scene: Scene, score: Score, start: Sequence[float] | None = None) -> np.ndarray:
    """The reference's answer in float64."""
    k, v = scene.k.double(), scene.v.double()
    if scene.scales is not None:
        k, v = (
            x * s.double()[None, :, None, None] for x, s in zip((k, v), scene.scales, strict=True)
        )
    return attention(
        scene.q, k, v, scene.table, scene.batch, score, scene.q.shape[2] ** -0.5, start
    )
