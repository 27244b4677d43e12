"""RowTable: what the scheduler knows of each sequence, one array a fact, one row a sequence. No decisions here.

    0 <= computed <= scheduled < length <= limit        of a running row
    prompt + generated <= length                        the rest is promised by open plans

States:  free -> running -> ended -> free, and running -> preempted -> running; see `scheduler.py` for who moves them.
"""

from enum import IntEnum

import numpy as np

from engine.core.plan import I32, I64


class State(IntEnum):
    """Where a row stands."""

    FREE = 0
    RUNNING = 1
    PREEMPTED = 2
    ENDED = 3
    """Over, but an open plan still names it: its frames stay until that plan commits."""


class RowTable:
    """Columns by row; grown by doubling, rows reused smallest first."""

    def __init__(self) -> None:
        size = 16
        self.state: I32 = np.zeros(size, np.int32)
        self.request: I64 = np.full(size, -1, np.int64)
        self.arrival: I64 = np.zeros(size, np.int64)
        """Submission order: smaller is older."""
        self.prompt: I32 = np.zeros(size, np.int32)
        self.limit: I32 = np.zeros(size, np.int32)
        """Prompt + max_tokens: the length at which it ends."""
        self.generated: I32 = np.zeros(size, np.int32)
        """Tokens accepted by commits."""
        self.length: I32 = np.zeros(size, np.int32)
        """Tokens known, or promised by an open plan."""
        self.scheduled: I32 = np.zeros(size, np.int32)
        """Positions computed, or to be computed by an open plan."""
        self.computed: I32 = np.zeros(size, np.int32)
        """Positions that a commit has reported computed."""
        self.plans: I32 = np.zeros(size, np.int32)
        """Open plans that name it."""
        self.floor: I32 = np.zeros(size, np.int32)
        """`generated` when it last resumed, -1 before any preemption: at or under it, the row is immune."""
        self._free = list(range(size - 1, -1, -1))

    def take(self) -> int:
        """A free row."""
        if not self._free:
            size = len(self.state)
            for name, column in list(vars(self).items()):
                if isinstance(column, np.ndarray):
                    setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
            self.request[size:] = -1
            self._free = list(range(2 * size - 1, size - 1, -1))
        return self._free.pop()

    def open(self, row: int, request: int, arrival: int, prompt: int, limit: int) -> None:
        """Gives `row` to a request that has not run yet."""
        self.request[row] = request
        self.arrival[row] = arrival
        self.prompt[row] = prompt
        self.limit[row] = limit
        self.generated[row] = 0
        self.scheduled[row] = 0
        self.floor[row] = -1

    def free(self, row: int) -> None:
        """Gives `row` back; no open plan may name it."""
        self.state[row] = State.FREE
        self.request[row] = -1
        self.computed[row] = 0
        self._free.append(row)
