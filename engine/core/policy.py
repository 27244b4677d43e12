"""Victim choice, as pure functions of columns. Queue order is the scheduler's list order: first come, first served."""

import numpy as np

from engine.core.plan import I32
from engine.core.rows import RowTable


def youngest_victim(table: RowTable, running: I32, asking: int) -> int | None:
    """The running row that gives way when `asking` needs a frame; None where it should wait instead.

    `running` is sorted by arrival. The oldest is never a victim. A row that was preempted before is immune until it has
    generated a token since, except that the oldest may take anyone's room. `asking` may itself be the answer.
    """
    candidates = running[1:]
    progressed = candidates[table.generated[candidates] > table.floor[candidates]]
    if asking == running[0]:
        candidates = progressed if len(progressed) else candidates
    else:
        candidates = progressed[table.arrival[progressed] >= table.arrival[asking]]
    return int(candidates[-1]) if len(candidates) else None


def insert_by_arrival(table: RowTable, rows: I32, row: int) -> I32:
    """`rows`, sorted by arrival, with `row` in its place."""
    at = int(np.searchsorted(table.arrival[rows], table.arrival[row]))
    return np.insert(rows, at, np.int32(row))
