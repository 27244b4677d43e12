"""RowTable: what the scheduler knows of each sequence, one array a fact, one row a sequence. No decisions here.

A running row has 0 <= computed <= scheduled <= known - 1 while its known tokens are computed (prefill), and then decodes:
each step computes one more position. What can be derived is not stored: positions that commits have reported are
`scheduled` less what open plans still compute, and a decoding row knows one token more than it has computed.
"""

from typing import Final

import numpy as np

from engine.core.arrays import I32, I64


class State:
    """Where a row stands. Plain integers: NumPy takes 3 µs more to compare with a member of an enumeration."""

    FREE: Final = 0
    RUNNING: Final = 1
    FORMING: Final = 2
    """Reserved for a sequence that comes into being when its prompt's last chunk is planned."""
    OFF: Final = 3
    """Preempted or swapped out."""
    ENDED: Final = 4
    """Over, but an open plan still names it: its frames stay until that plan commits."""


class RowTable:
    """Columns by row; grown by doubling, rows given back last are reused first."""

    def __init__(self) -> None:
        size = 16
        self.state: I32 = np.zeros(size, np.int32)
        self.request: I64 = np.full(size, -1, np.int64)
        self.index: I32 = np.zeros(size, np.int32)
        """Which sequence of its request."""
        self.rank: I64 = np.zeros(size, np.int64)
        """Order of running: (class, arrival) as one number; smaller runs first and gives way last."""
        self.prompt: I32 = np.zeros(size, np.int32)
        self.limit: I32 = np.zeros(size, np.int32)
        """Prompt + max_tokens: the length at which it ends."""
        self.known: I32 = np.zeros(size, np.int32)
        """Tokens that were known when it last began to run; a row that is off: all that are known."""
        self.scheduled: I32 = np.zeros(size, np.int32)
        """Positions computed, or to be computed by an open plan."""
        self.target: I32 = np.zeros(size, np.int32)
        """Positions that it computes in chunks before it decodes: all known ones, of a resumed hypothesis one less."""
        self.floor: I32 = np.zeros(size, np.int32)
        """`known` when it last resumed, -1 before any preemption: until it knows more, the row is immune."""
        self.tenant: I32 = np.zeros(size, np.int32)
        self.paid: I32 = np.zeros(size, np.int32)
        """Prompt positions that its tenant was charged for."""
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

    def open(self, row: int, request: int, index: int, rank: int, prompt: int, limit: int) -> None:
        """Gives `row` to a sequence that has not run yet."""
        self.request[row] = request
        self.index[row] = index
        self.rank[row] = rank
        self.prompt[row] = prompt
        self.limit[row] = limit
        self.known[row] = self.target[row] = prompt
        self.scheduled[row] = 0
        self.floor[row] = -1
        self.paid[row] = 0

    def free(self, row: int) -> None:
        """Gives `row` back; no open plan may name it."""
        self.state[row] = State.FREE
        self.request[row] = -1
        self.scheduled[row] = 0
        self._free.append(row)
