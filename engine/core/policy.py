"""Who gives way, and who has been served how much: pure functions of columns, and the virtual token counters.

Queue order is in `queue.py`; victim choice is separate from it.
"""

import numpy as np

from engine.core.arrays import I32, I64, Index
from engine.core.rows import RowTable


def youngest_victim(table: RowTable, running: Index, known: I32, asking: int) -> int | None:
    """The running row whose request gives way when `asking` needs a frame; None where it should wait instead.

    `running` is sorted by rank, `known` are the tokens each row knows. The first, oldest of the highest class, and the
    sequences of its request are never victims. A row that was preempted before is immune until it has progressed,
    except that the oldest may take anyone's room. The answer may be `asking` itself.
    """
    candidates = table.request[running] != table.request[running[0]]
    if table.request[asking] == table.request[running[0]]:
        progressed = candidates & (known > table.floor[running])
        candidates = progressed if progressed.any() else candidates
    else:
        candidates &= (known > table.floor[running]) & (table.rank[running] >= table.rank[asking])
    chosen = np.flatnonzero(candidates)
    return int(running[chosen[-1]]) if len(chosen) else None


def insert_by_rank(table: RowTable, rows: Index, row: int) -> Index:
    """`rows`, sorted by rank, with `row` after those of equal rank."""
    at = size = len(rows)
    if size and table.rank[rows[-1]] > table.rank[row]:
        at = int(table.rank[rows].searchsorted(table.rank[row], side="right"))
    longer = np.empty(size + 1, np.intp)
    longer[:at] = rows[:at]
    longer[at] = row
    longer[at + 1 :] = rows[at:]
    return longer


class Shares:
    """Virtual token counters (Sheng et al., OSDI 2024, algorithm 2): the service each tenant had, over its weight.

    A tenant that returns is lifted to the least served one that waits, or to the last that left when none does, so that
    being away saves nothing up.
    """

    def __init__(self, prompt_weight: float, output_weight: float) -> None:
        self._prompt_weight = prompt_weight
        self._output_weight = output_weight
        self._names: list[str] = []
        self._number: dict[str, int] = {}
        self._lifted: list[float] = []
        self._prompt: list[int] = []
        self._output: list[int] = []
        self._weights: list[float] = []
        self._waiting: dict[str, int] = {}
        self._last_left: str | None = None

    def number(self, tenant: str) -> int:
        """A small integer for `tenant`."""
        if tenant not in self._number:
            self._number[tenant] = len(self._names)
            self._names.append(tenant)
            self._lifted.append(0.0)
            self._prompt.append(0)
            self._output.append(0)
            self._weights.append(1.0)
        return self._number[tenant]

    def served(self, tenant: str) -> float:
        """Weighted service so far, with what the tenant was lifted by. Depends on totals only, not on their order."""
        at = self.number(tenant)
        cost = self._prompt[at] * self._prompt_weight + self._output[at] * self._output_weight
        return self._lifted[at] + cost / self._weights[at]

    def enter(self, tenant: str, weight: float) -> None:
        """A request of `tenant` begins to wait."""
        at = self.number(tenant)
        had = self.served(tenant)
        self._weights[at] = weight
        self._lifted[at] += had - self.served(tenant)
        if tenant not in self._waiting:
            if self._waiting:
                lift = min(self.served(other) for other in self._waiting)
            else:
                lift = self.served(self._last_left) if self._last_left is not None else 0.0
            self._lifted[at] += max(0.0, lift - had)
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        """A request of `tenant` waits no more."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._last_left = tenant

    def charge_prompt(self, tenant: int, count: int) -> None:
        """`count` prompt positions of `tenant` are computed for the first time."""
        self._prompt[tenant] += count

    def charge_output(self, tenants: I32, count: int) -> None:
        """Each entry of `tenants` has `count` tokens sampled; negative: they were discarded."""
        for at, rows in enumerate(np.bincount(tenants).tolist()):
            self._output[at] += rows * count

    def charge_each(self, tenants: I32, counts: I32 | I64) -> None:
        """The sequences of `tenants` have counts[i] tokens sampled."""
        for tenant, count in zip(tenants.tolist(), counts.tolist(), strict=True):
            self._output[tenant] += count
