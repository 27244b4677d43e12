"""FrameMap: what lies in each frame of the pool at one moment, as columns, for whoever draws it. Changes nothing.

Knows frames, references and tables; knows no scheduler and no pixels.
"""

from enum import IntEnum
from typing import Final

import numpy as np
from msgspec import Struct

from engine.core.arrays import I8, I32, I64
from engine.core.blocks import BlockPool
from engine.core.tables import BlockTables

MAX_OTHERS: Final = 7
"""How many holders of a shared frame are listed beside its owner."""


class FrameState(IntEnum):
    """State of a frame as a person sees it; `SHARED` is held by two or more sequences."""

    FREE = 0
    CACHED = 1
    HELD = 2
    SHARED = 3
    MOVING = 4


class FrameMap(Struct, frozen=True, eq=False):
    """[total] columns by frame; arrays are not writable. The owner of a frame is the holder with the lowest row."""

    block_size: int
    state: I8
    """`FrameState`."""
    refs: I32
    """References of tables, transfers and copies."""
    request: I64
    """`RequestId` of the owner; -1 where no sequence holds the frame."""
    index: I32
    """Which sequence of its request the owner is; -1 for none."""
    column: I32
    """The frame is the owner's block number `column`, positions from `column * block_size` on; -1 for none."""
    other_frames: I32
    """[others] frames with further holders, ascending; at most `MAX_OTHERS` entries a frame."""
    other_requests: I64
    other_indexes: I32


def frame_map(
    pool: BlockPool, tables: BlockTables, requests: I64, indexes: I32, block_size: int
) -> FrameMap:
    """The pool now; `requests[row]` and `indexes[row]` name the sequence of each row of the tables. O(frames + entries)."""
    total = pool.total
    counts = tables.counts[: len(requests)]
    rows, columns = np.nonzero(np.arange(counts.max(initial=0)) < counts[:, None])
    blocks = tables.blocks[rows, columns]
    order = np.argsort(blocks, kind="stable")  # within a frame by row, because `rows` rises
    blocks, rows, columns = blocks[order], rows[order], columns[order]
    heads = np.flatnonzero(np.diff(blocks, prepend=-1))
    sizes = np.diff(heads, append=len(blocks))
    owned = blocks[heads]

    request = np.full(total, -1, np.int64)
    index = np.full(total, -1, np.int32)
    column = np.full(total, -1, np.int32)
    request[owned] = requests[rows[heads]]
    index[owned] = indexes[rows[heads]]
    column[owned] = columns[heads]

    state = np.full(total, FrameState.FREE, np.int8)
    state[(pool.refs == 0) & pool.indexed] = FrameState.CACHED
    state[(pool.refs > 0) & (pool.refs == pool.moves)] = FrameState.MOVING
    state[owned] = FrameState.HELD
    state[owned[sizes > 1]] = FrameState.SHARED

    place = np.arange(len(blocks)) - np.repeat(heads, sizes)
    others = np.flatnonzero((place > 0) & (place <= MAX_OTHERS))
    found = FrameMap(
        block_size,
        state,
        pool.refs.copy(),
        request,
        index,
        column,
        blocks[others],
        requests[rows[others]],
        indexes[rows[others]],
    )
    for array in (state, found.refs, request, index, column):
        array.flags.writeable = False
    for array in (found.other_frames, found.other_requests, found.other_indexes):
        array.flags.writeable = False
    return found
