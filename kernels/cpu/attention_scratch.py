"""Where paged attention finds what it works on: sizes and distances of queries, pool and results, and each thread's scratch.

Knows layouts; does no arithmetic on what lies there.
"""

from typing import NamedTuple

import numba

from kernels.cpu.steps import BLOCK_SIZE, GROUP, HEAD_DIM, KIND, KV_HEADS, SPAN, word

QUERY_ROWS = 24
"""Query rows that an item of a prompt chunk packs, where the group is not larger still."""
SUBTILES = SPAN // 8


class Shape(NamedTuple):
    """Sizes, and bytes between neighbours, of queries, pool and results."""

    kind: int
    kv_heads: int
    group: int
    head_dim: int
    block_size: int
    query_bytes: int
    """A row of queries."""
    subtile_bytes: int
    """8 positions of one head's K or V."""
    head_bytes: int
    """One head's K of a frame."""
    value_bytes: int
    """From a frame's K to its V."""
    result_bytes: int
    """A row of results, float32."""
    weight_bytes: int
    """A row of a tile's weights."""


class Space(NamedTuple):
    """Addresses in a thread's scratch."""

    keys: int
    """Subtiles of the tile at hand, `SUBTILES` addresses and one more."""
    values: int
    coming: int
    """K subtiles of the tile after it."""
    masked: int
    scores: int
    weights: int
    fresh: int
    """The tile's partial result, a row of values for each query row, and the maximum and sum of each."""
    fresh_peaks: int
    fresh_sums: int
    running: int
    """The merged result of the tiles so far."""
    peaks: int
    sums: int


def chunk_tokens(group: int) -> int:
    """Tokens of an item of a prompt chunk, at `group` query heads a KV head."""
    return max(1, QUERY_ROWS // group)


def scratch_bytes(group: int, head_dim: int) -> int:
    """What one thread needs; see `Space`."""
    rows: int = most_rows.py_func(group)
    return 3 * 8 * (SUBTILES + 8) + 32 * head_dim + rows * (8 * SPAN + 8 * head_dim + 16)


def partial_bytes(group: int, head_dim: int) -> int:
    """Bytes of the partial result of one tile, one KV head."""
    return 4 * group * (head_dim + 2)


@numba.njit(nogil=True)
def most_rows(group):
    """Rows that scratch has room for: those of an item, and spare ones to fill register tiles and vectors."""
    return (max(QUERY_ROWS, group) + 31) & -16


@numba.njit(nogil=True)
def shape_of(header):
    """The `Shape` that a step's header tells."""
    kind, kv_heads, group = word(header, KIND), word(header, KV_HEADS), word(header, GROUP)
    head_dim, block_size = word(header, HEAD_DIM), word(header, BLOCK_SIZE)
    size = 2 if kind == 0 else 4
    head_bytes = block_size * head_dim * size
    return Shape(
        kind,
        kv_heads,
        group,
        head_dim,
        block_size,
        head_dim * size,
        8 * head_dim * size,
        head_bytes,
        kv_heads * head_bytes,
        4 * head_dim,
        SPAN * size,
    )


@numba.njit(nogil=True)
def space_of(scratch, group, head_dim):
    """The `Space` of a thread's scratch of `scratch_bytes`."""
    rows = most_rows(group)
    step = 8 * (SUBTILES + 8)
    masked = scratch + 3 * step
    scores = masked + 32 * head_dim
    weights = scores + rows * 4 * SPAN
    fresh = weights + rows * 4 * SPAN
    running = fresh + rows * 4 * head_dim
    state = running + rows * 4 * head_dim
    return Space(
        scratch,
        scratch + step,
        scratch + 2 * step,
        masked,
        scores,
        weights,
        fresh,
        state,
        state + 4 * rows,
        running,
        state + 8 * rows,
        state + 12 * rows,
    )
