"""Block tables beside a dictionary of lists."""

import numpy as np
import pytest

from engine.core.errors import InvariantError
from engine.core.tables import BlockTables
from tests.engine.core.worlds import Choose, World, machine, rule, walk

ROWS = 24


class TablesWorld(World):
    def __init__(self, choose: Choose) -> None:
        self.tables = BlockTables()
        self.model: dict[int, list[int]] = {}
        self.next = 0

    def fresh(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))

    @rule(weight=3)
    def extend(self, choose: Choose) -> None:
        row, blocks = choose.between(0, ROWS - 1), self.fresh(choose.between(0, 12))
        self.tables.extend(row, np.array(blocks, np.int32))
        self.model.setdefault(row, []).extend(blocks)

    @rule(weight=3, when=lambda self: self.model)
    def append_each(self, choose: Choose) -> None:
        rows = [row for row in self.model if choose.between(0, 1)] or [next(iter(self.model))]
        blocks = self.fresh(len(rows))
        columns = self.tables.append_each(np.array(rows, np.int32), np.array(blocks, np.int32))
        assert columns.tolist() == [len(self.model[row]) for row in rows]
        for row, block in zip(rows, blocks, strict=True):
            self.model[row].append(block)

    @rule(weight=3, when=lambda self: self.model)
    def append_many(self, choose: Choose) -> None:
        """Rows may repeat, in any order."""
        known = list(self.model)
        rows = [choose.one_of(known) for _ in range(choose.between(1, 9))]
        blocks = self.fresh(len(rows))
        columns = self.tables.append_many(
            np.array(rows, np.int32),
            np.array([rows[:at].count(row) for at, row in enumerate(rows)], np.int32),
            np.array(blocks, np.int32),
        )
        for row, block, column in zip(rows, blocks, columns.tolist(), strict=True):
            assert column == len(self.model[row])
            self.model[row].append(block)

    @rule(weight=2, when=lambda self: self.model)
    def clear(self, choose: Choose) -> None:
        row = choose.one_of(list(self.model))
        assert self.tables.clear(row).tolist() == self.model[row]
        self.model[row] = []

    def check(self) -> None:
        self.tables.check_invariants()
        for row in range(ROWS):
            assert self.tables.of(row).tolist() == self.model.get(row, [])

    def finish(self, choose: Choose) -> None:
        for row in self.model:
            self.tables.clear(row)
        assert (self.tables.blocks == -1).all()
        assert not self.tables.counts.any()


TestTables = machine(TablesWorld, examples=20, steps=30)


def test_tables_equal_their_model_on_a_long_walk():
    walk(TablesWorld, 0, 10_000, a_world=100)


def test_an_entry_behind_the_count_is_an_invariant_error():
    tables = BlockTables()
    tables.blocks[0, 0] = 3
    with pytest.raises(InvariantError):
        tables.check_invariants()
