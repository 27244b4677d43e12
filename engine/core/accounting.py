"""MemoryReport of a paged pool: what its frames and tables hold at one moment. Changes nothing, and knows no scheduler."""

import numpy as np

from engine.core.arrays import I32
from engine.core.blocks import BlockPool
from engine.core.plan import MemoryReport
from engine.core.swap import SwapSpace
from engine.core.tables import BlockTables


def memory_report(
    pool: BlockPool,
    tables: BlockTables,
    host: SwapSpace,
    block_size: int,
    computed: I32,
    num_running: int,
    num_waiting: int,
    num_swapped: int,
) -> MemoryReport:
    """The pool now; `computed[row]` positions of each row of the tables hold a token state. O(entries)."""
    counts = tables.counts[: len(computed)]
    rows, columns = np.nonzero(np.arange(counts.max(initial=0)) < counts[:, None])
    filled = np.minimum(np.maximum(computed[rows] - columns * block_size, 0), block_size)
    states = np.zeros(pool.total, np.int32)
    np.maximum.at(states, tables.blocks[rows, columns], filled)
    moving = int(np.count_nonzero((pool.moves == pool.refs) & (pool.refs > 0)))
    held = pool.total - pool.free - pool.cached - moving
    return MemoryReport(
        block_size=block_size,
        total_blocks=pool.total,
        free_blocks=pool.free,
        cached_blocks=pool.cached,
        held_blocks=held,
        moving_blocks=moving,
        used_tokens=int(states.sum()),
        allocated_tokens=held * block_size,
        logical_blocks=len(rows),
        host_blocks=host.total,
        host_used_blocks=host.total - host.free,
        num_running=num_running,
        num_waiting=num_waiting,
        num_swapped=num_swapped,
    )
