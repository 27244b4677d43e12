"""BlockManager: paged KV memory. Block tables over a pool of frames, with the deltas that a device mirror needs.

Knows rows and lengths; knows no requests, no queues, and not who should give way when frames run out.
Invariants: reference counts equal the references from tables; each frame is in at most one table.
"""

import numpy as np

from engine.core.allocator import Grant
from engine.core.blocks import BlockPool
from engine.core.config import MemoryConfig
from engine.core.errors import InvariantError
from engine.core.plan import I32, MemoryReport
from engine.core.tables import BlockTables

_NOTHING: I32 = np.zeros(0, np.int32)


class BlockManager:
    """The paged `Allocator` (Kwon et al., SOSP 2023, section 4)."""

    def __init__(self, config: MemoryConfig) -> None:
        self.block_size = config.block_size
        self.total_blocks = config.num_blocks
        self.pool = BlockPool(config.num_blocks)
        self.tables = BlockTables()
        self._deltas: list[tuple[I32, I32, I32]] = []

    @property
    def free_blocks(self) -> int:
        """Frames that can be handed out now."""
        return self.pool.free

    def blocks_for(self, num_tokens: int) -> int:
        """Frames that `num_tokens` positions take."""
        return -(-num_tokens // self.block_size)

    def could_hold(self, num_tokens: int) -> bool:
        """Whether a sequence of `num_tokens` positions fits when it is alone."""
        return self.blocks_for(num_tokens) <= self.total_blocks

    def admit(self, row: int, num_tokens: int, reserve: int) -> Grant:
        """Gives `row` room for `num_tokens` positions and leaves `reserve` frames free. O(blocks)."""
        if self.held_by(row):
            raise ValueError(f"row {row} already holds frames")
        needed = self.blocks_for(num_tokens)
        if needed > self.total_blocks:
            return Grant.NEVER
        if needed + reserve > self.pool.free:
            return Grant.LATER
        blocks = self.pool.take(needed)
        assert blocks is not None
        self.tables.extend(row, blocks)
        self._deltas.append(
            (np.full(needed, row, np.int32), np.arange(needed, dtype=np.int32), blocks)
        )
        return Grant.OK

    def short(self, rows: I32, lengths: I32) -> I32:
        """Indices into `rows` of those whose table cannot hold `lengths` positions."""
        lacking = self.tables.counts[rows] * self.block_size < lengths
        return np.flatnonzero(lacking).astype(np.int32)

    def grow(self, rows: I32) -> I32 | None:
        """Gives each of `rows` one more frame; the frames, or None where the pool has too few."""
        blocks = self.pool.take(len(rows))
        if blocks is None:
            return None
        columns = self.tables.append_each(rows, blocks)
        self._deltas.append((rows, columns, blocks))
        return blocks

    def release(self, row: int) -> int:
        """Takes all frames from `row`; how many it held."""
        blocks = self.tables.clear(row)
        self.pool.give(blocks)
        return len(blocks)

    def blocks_of(self, row: int) -> I32:
        """The frames of `row` in logical order: a view."""
        return self.tables.of(row)

    def held_by(self, row: int) -> int:
        """How many frames `row` holds."""
        return int(self.tables.counts[row]) if row < len(self.tables.counts) else 0

    def take_deltas(self) -> tuple[I32, I32, I32]:
        """(rows, columns, frames) of the table entries set since the last take, in order."""
        deltas, self._deltas = self._deltas, []
        if not deltas:
            return _NOTHING, _NOTHING, _NOTHING
        if len(deltas) == 1:
            return deltas[0]
        rows, columns, blocks = zip(*deltas, strict=True)
        return np.concatenate(rows), np.concatenate(columns), np.concatenate(blocks)

    def check_invariants(self) -> None:
        """Raises `InvariantError` unless counts equal references and no frame is in two tables. O(frames + entries)."""
        self.pool.check_invariants()
        self.tables.check_invariants()
        listed = self.tables.blocks[self.tables.blocks >= 0]
        references = np.bincount(listed, minlength=self.total_blocks)
        if (references != self.pool.refs).any():
            raise InvariantError("reference counts differ from the references in the block tables")
        if (references > 1).any():
            raise InvariantError("a frame is in two block tables")

    def report(self, used_tokens: int, num_running: int, num_waiting: int) -> MemoryReport:
        """The pool at this moment."""
        held = self.total_blocks - self.pool.free
        return MemoryReport(
            block_size=self.block_size,
            total_blocks=self.total_blocks,
            free_blocks=self.pool.free,
            held_blocks=held,
            used_tokens=used_tokens,
            allocated_tokens=held * self.block_size,
            num_running=num_running,
            num_waiting=num_waiting,
        )
