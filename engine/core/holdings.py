"""Holdings: which frames each row has. The pool and the tables together, and notes of what changed in them since they were asked for.

Knows rows and frames, and that a frame whose content is evicted leaves the index; knows no content, no host pool, and not who
should give way when frames run out.

Invariants, beside those of its parts: a frame's references are those of tables, transfers and copies; a frame that is written
is in one table only.
"""

import numpy as np

from engine.core.arrays import I32, I64, Index, filled
from engine.core.blocks import BlockPool
from engine.core.errors import InvariantError
from engine.core.frames import FrameMap, frame_map
from engine.core.prefix import PrefixIndex
from engine.core.tables import BlockTables

_NOTHING: I32 = np.zeros(0, np.int32)


class Holdings:
    """Tables over a pool of frames: growth by single frames, and copy-on-write."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._size: I64 = np.array(block_size)
        self.total_blocks = num_blocks
        self.pool = BlockPool(num_blocks)
        self.tables = BlockTables()
        self.index = PrefixIndex(num_blocks, self.pool.indexed)
        self.evicted: list[Index] = []
        """Frames whose content left the index, until `take_evicted`."""
        self.num_evicted = 0
        self.num_copied = 0
        self._deltas: list[tuple[I32, I32, I32]] = []
        self._copies: list[tuple[int, int, int, int]] = []
        """(row, column, source, copy) until `take_copies`."""

    @property
    def free_blocks(self) -> int:
        """Frames that can be handed out now: free, or cached and evictable."""
        return self.pool.available

    @property
    def cached_blocks(self) -> int:
        """Frames without an owner whose content is still findable."""
        return self.pool.cached

    def blocks_for(self, num_tokens: int) -> int:
        """Frames that `num_tokens` positions take."""
        return -(-num_tokens // self.block_size)

    def blocks_of(self, row: int) -> I32:
        """The frames of `row` in logical order: a view."""
        return self.tables.of(row)

    def held_by(self, row: int) -> int:
        """How many frames `row` holds."""
        return int(self.tables.counts[row]) if row < len(self.tables.counts) else 0

    def _take(self, count: int) -> Index | None:
        taken = self.pool.take(count)
        if taken is None:
            return None
        blocks, evicted = taken
        if len(evicted):
            self.index.drop(evicted)
            self.evicted.append(evicted)
            self.num_evicted += len(evicted)
        return blocks

    def _set(self, row: int, blocks: I32 | Index) -> None:
        """`row`, which is empty, holds `blocks`."""
        self.tables.extend(row, blocks)
        size = len(blocks)
        columns = np.arange(size, dtype=np.int32)
        self._deltas.append((filled(size, row), columns, blocks.astype(np.int32)))

    def _hold(self, frames: I32) -> None:
        self.pool.share(frames)
        self.pool.moves[frames] += 1

    # -- growth ------------------------------------------------------------------------------------------------

    def short(self, rows: Index, lengths: I32) -> Index:
        """Indices into `rows` of those whose table cannot hold `lengths` positions."""
        lacking = self.tables.counts[rows] * self._size < lengths
        return lacking.nonzero()[0]

    def grow(self, rows: Index) -> I32 | None:
        """Gives each of `rows` one more frame; the frames, or None where there are too few."""
        blocks = self._take(len(rows))
        if blocks is None:
            return None
        columns = self.tables.append_each(rows, blocks)
        frames = blocks.astype(np.int32)
        self._deltas.append((rows.astype(np.int32), columns.astype(np.int32), frames))
        return frames

    def room_of(self, rows: Index) -> I64:
        """Positions that each of `rows` has frames for."""
        return self.tables.counts[rows] * self._size

    def grow_each(self, rows: Index, nth: Index) -> tuple[I32, int]:
        """Gives a frame for each entry of `rows`, in order: the row's `nth[i]`-th new one, ascending.

        (frames, how many of the first were free rather than evicted for this).
        """
        num_free = self.pool.free
        blocks = self._take(len(rows))
        if blocks is None:
            raise ValueError("grow_each must be asked for no more than is free")
        columns = self.tables.append_many(rows, nth, blocks)
        frames = blocks.astype(np.int32)
        self._deltas.append((rows.astype(np.int32), columns.astype(np.int32), frames))
        return frames, min(num_free, len(rows))

    # -- copy-on-write -----------------------------------------------------------------------------------------

    def shares_tail(self, row: int, position: int) -> bool:
        """Whether writing `position` of `row` would write a frame that another sequence holds."""
        column = position // self.block_size
        if column >= self.tables.counts[row]:
            return False
        block = self.tables.blocks[row, column]
        return bool(self.pool.refs[block] - self.pool.moves[block] > 1)

    def make_writable(self, row: int, position: int) -> tuple[int, int] | None:
        """Copy-on-write: gives `row` a frame of its own for `position`; (source, copy), or None where there is none.

        The source stays referenced until `copied` says that the copy has run.
        """
        taken = self._take(1)
        if taken is None:
            return None
        column = position // self.block_size
        source, copy = int(self.tables.blocks[row, column]), int(taken[0])
        self.tables.blocks[row, column] = copy
        self.pool.moves[source] += 1
        self._deltas.append((filled(1, row), filled(1, column), taken.astype(np.int32)))
        self._copies.append((row, column, source, copy))
        self.num_copied += 1
        return source, copy

    def uncopy(self, rows: list[int]) -> list[tuple[int, int, int]]:
        """Takes back the copies of `rows` since the last `take_copies`: (row, source, copy) of each."""
        undone = [entry for entry in self._copies if entry[0] in rows]
        for row, column, source, copy in undone:
            self._copies.remove((row, column, source, copy))
            self.num_copied -= 1
            # The copy's reference to the source becomes the table's again.
            self.pool.moves[source] -= 1
            self.tables.blocks[row, column] = source
            self.pool.give(np.array([copy]))
            self._deltas.append((filled(1, row), filled(1, column), filled(1, source)))
        return [(row, source, copy) for row, _, source, copy in undone]

    def copied(self, sources: list[int]) -> None:
        """The copies from `sources` have run: their references go."""
        for source in sources:
            self.pool.moves[source] -= 1
            self.pool.give(np.array([source]))

    # -- what changed ------------------------------------------------------------------------------------------

    def take_deltas(self) -> tuple[I32, I32, I32]:
        """(rows, columns, frames) of the table entries set since the last take, in order."""
        deltas, self._deltas = self._deltas, []
        if not deltas:
            return _NOTHING, _NOTHING, _NOTHING
        if len(deltas) == 1:
            return deltas[0]
        rows, columns, blocks = zip(*deltas, strict=True)
        return np.concatenate(rows), np.concatenate(columns), np.concatenate(blocks)

    def take_evicted(self) -> tuple[int, ...]:
        """Frames whose content left the index since the last take, in order."""
        evicted, self.evicted = self.evicted, []
        return tuple(np.concatenate(evicted).tolist()) if evicted else ()

    def take_copies(self) -> list[tuple[int, int]]:
        """(source, copy) of the copy-on-writes since the last take, to run before the step that follows."""
        copies, self._copies = self._copies, []
        return [(source, copy) for _, _, source, copy in copies]

    # -- looking -----------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raises `InvariantError` unless references are those of tables and transfers. O(frames + entries)."""
        self.pool.check_invariants()
        self.tables.check_invariants()
        self.index.check_invariants()
        listed = self.tables.blocks[self.tables.blocks >= 0]
        references = np.bincount(listed, minlength=self.total_blocks)
        if (references + self.pool.moves != self.pool.refs).any():
            raise InvariantError(
                "reference counts differ from the references of tables and transfers"
            )

    def frames(self, requests: I64, indexes: I32) -> FrameMap:
        """What lies in each frame; `requests[row]` and `indexes[row]` name the sequence of each row. O(entries)."""
        return frame_map(self.pool, self.tables, requests, indexes, self.block_size)
