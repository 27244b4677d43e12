"""BlockTables: logical to physical, one row a sequence, as NumPy arrays that a kernel can read. Knows no free list.

Invariants: entries [0, counts[row]) of a row are frames, the rest are NO_BLOCK; a free row has count 0.
"""

import numpy as np

from engine.core.arrays import I32, I64, Index
from engine.core.errors import InvariantError
from engine.core.ids import NO_BLOCK

_FIRST_ROWS = 16
_FIRST_WIDTH = 16


class BlockTables:
    """`blocks[row, column]` is the frame of a row's `column`-th block; `counts[row]` says how many it has.

    Both arrays are replaced by larger ones as rows or columns are asked for; amortised O(1) an entry.
    """

    def __init__(self) -> None:
        self.blocks: I32 = np.full((_FIRST_ROWS, _FIRST_WIDTH), NO_BLOCK, np.int32)
        self.counts: I64 = np.zeros(_FIRST_ROWS, np.int64)

    def reserve(self, row: int, width: int) -> None:
        """Makes entries [row, 0..width) addressable."""
        rows, columns = self.blocks.shape
        if row < rows and width <= columns:
            return
        new_rows = rows if row < rows else max(row + 1, 2 * rows)
        new_columns = columns if width <= columns else max(width, 2 * columns)
        blocks = np.full((new_rows, new_columns), NO_BLOCK, np.int32)
        blocks[:rows, :columns] = self.blocks
        counts = np.zeros(new_rows, np.int64)
        counts[:rows] = self.counts
        self.blocks, self.counts = blocks, counts

    def extend(self, row: int, blocks: I32 | Index) -> None:
        """Appends `blocks` to `row`."""
        first = int(self.counts[row]) if row < len(self.counts) else 0
        last = first + len(blocks)
        self.reserve(row, last)
        self.blocks[row, first:last] = blocks
        self.counts[row] = last

    def append_each(self, rows: Index, blocks: Index) -> I64:
        """Appends blocks[i] to rows[i], distinct rows that already have an entry; the columns that were set."""
        columns = self.counts[rows]
        self.reserve(0, max(columns.tolist()) + 1)
        self.blocks[rows, columns] = blocks
        self.counts[rows] = columns + 1
        return columns

    def append_many(self, rows: Index, nth: Index, blocks: Index) -> I64:
        """Appends blocks[i] to rows[i] as its nth[i]-th new one, ascending for each row; the columns that were set."""
        columns = self.counts[rows] + nth
        self.reserve(0, max(columns.tolist()) + 1)
        self.blocks[rows, columns] = blocks
        self.counts[rows] = columns + 1  # Of a row's entries the last one stays.
        return columns

    def of(self, row: int) -> I32:
        """The frames of `row` in logical order: a view."""
        if row >= len(self.counts):
            return self.blocks[0, :0]
        return self.blocks[row, : self.counts[row]]

    def clear(self, row: int) -> I32:
        """Empties `row`; a copy of what it held."""
        held = self.of(row).copy()
        self.blocks[row, : len(held)] = NO_BLOCK
        self.counts[row] = 0
        return held

    def check_invariants(self) -> None:
        """Raises `InvariantError` unless each row is frames first and padding after. O(entries)."""
        columns = np.arange(self.blocks.shape[1])
        filled = columns[None, :] < self.counts[:, None]
        if ((self.blocks >= 0) != filled).any():
            raise InvariantError("a block table row does not match its count")
