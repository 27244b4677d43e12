"""Cuts a batch into launches: which tiles of queries, and into how many shares their keys are split. Pure NumPy; knows no device.

A launch has one tile size. Sequences whose queries fit one small tile (decodes, verification, ends of prompts) go into the first
launch, longer chunks into the second. Keys are split when the longest tile would outlast an even spread of the work over
the multiprocessors: few long sequences, or one long among many short.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.attention.tiles import Tile

PROGRAMS_PER_SM = 4
"""Programs that an even spread gives each multiprocessor: enough to hide a wave's end."""
MIN_SHARE_KEYS = 256
"""A share reads at least this many keys, or its start and the merge cost more than it saves."""
MAX_SPLITS = 64
MIN_FIXED_SPLITS = 8

I32 = NDArray[np.int32]


class Launch(NamedTuple):
    """One launch of the traversal. `splits` 1: whole rows; otherwise each program reads `share` tiles of keys at most."""

    tile: Tile
    tile_seqs: I32
    """[tiles] sequence of each tile of queries."""
    tile_tokens: I32
    """[tiles] its first query, counted within the sequence."""
    tokens: int
    """Most queries of one tile."""
    splits: int
    share: int


def query_tiles(seqs: I32, q_lens: I32, tokens: int) -> tuple[I32, I32]:
    """(tile_seqs, tile_tokens) for sequences `seqs` with `q_lens` queries each, `tokens` queries a tile."""
    counts = -(-q_lens // tokens)
    owner = np.repeat(np.arange(len(seqs)), counts)
    index = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return seqs[owner].astype(np.int32), (index * tokens).astype(np.int32)


def even_share(
    key_tiles: NDArray[np.int64], kv_heads: int, num_sms: int, n: int, max_splits: int
) -> int:
    """Tiles of keys that one program reads so that all multiprocessors are busy alike, for tiles of queries that see `key_tiles` each."""
    even = -(-int(key_tiles.sum()) * kv_heads // (num_sms * PROGRAMS_PER_SM))
    return max(even, -(-MIN_SHARE_KEYS // n), -(-int(key_tiles.max(initial=0)) // max_splits), 1)


def split_keys(
    key_tiles: NDArray[np.int64], kv_heads: int, num_sms: int, n: int
) -> tuple[int, int]:
    """(splits, share) for tiles of queries that see `key_tiles` tiles of keys each."""
    longest = int(key_tiles.max(initial=0))
    share = even_share(key_tiles, kv_heads, num_sms, n, MAX_SPLITS)
    if 2 * longest <= 3 * share:
        return 1, max(longest, 1)
    return -(-longest // share), share


def fixed_splits(tiles: int, kv_heads: int, num_sms: int) -> int:
    """Splits for a launch that must serve any lengths, as a captured graph does: enough to fill the device with `tiles` of queries,
    and enough that one long sequence among many short ones is spread.
    """
    filling = -(-num_sms * PROGRAMS_PER_SM // (tiles * kv_heads))
    return min(max(filling, MIN_FIXED_SPLITS), MAX_SPLITS)


def schedule(
    q_lens: I32,
    kv_lens: I32,
    *,
    small: Tile,
    large: Tile,
    group: int,
    kv_heads: int,
    num_sms: int,
    reach: int | None = None,
) -> tuple[Launch, ...]:
    """The launches for a batch; sequences without queries are in none.

    Args:
        q_lens: [num_seqs] queries of each sequence in this step.
        kv_lens: [num_seqs] keys of each sequence, its queries' own included.
        small: tile for sequences whose queries fit one of it.
        large: tile for the others.
        group: query heads of one KV head.
        kv_heads: KV heads.
        num_sms: multiprocessors of the device.
        reach: most keys that one query sees under the rule; None: all.
    """
    fits = q_lens * group <= small.m
    launches = []
    for tile, chosen in ((small, fits & (q_lens > 0)), (large, ~fits)):
        seqs = np.flatnonzero(chosen).astype(np.int32)
        if not len(seqs):
            continue
        tokens = tile.m // group
        tile_seqs, tile_tokens = query_tiles(seqs, q_lens[seqs], tokens)
        keys = kv_lens[tile_seqs].astype(np.int64)
        if reach is not None:
            keys = np.minimum(keys, reach + tokens)
        splits, share = split_keys(-(-keys // tile.n), kv_heads, num_sms, tile.n)
        most = min(tokens, int(q_lens[seqs].max()))
        launches.append(Launch(tile, tile_seqs, tile_tokens, most, splits, share))
    return tuple(launches)
