"""WaitingQueue: requests that have not run yet, in the order of the policy. Knows no rows and no memory."""

from collections import OrderedDict

from msgspec import Struct

from engine.core.config import SchedulerConfig
from engine.core.ids import RequestId, TimeNs
from engine.core.plan import Request
from engine.core.policy import Shares

_CLASS_SHIFT = 40


class Waiting(Struct, frozen=True, eq=False):
    """A request in the queue."""

    request: Request
    arrival: int
    """Submission order."""
    since: TimeNs
    limit: int
    """Length, prompt and output, at which each of its sequences ends."""

    @property
    def rank(self) -> int:
        """(class, arrival) as one number."""
        return (self.request.priority << _CLASS_SHIFT) + self.arrival


class WaitingQueue:
    """By class, under `fair` by tenant, then by arrival. Every operation is O(classes + tenants)."""

    def __init__(self, config: SchedulerConfig, shares: Shares) -> None:
        self._fair = config.policy == "fair"
        self._classes = config.policy != "fcfs"
        self._aging = config.aging_ns
        self._shares = shares
        self._lines: dict[tuple[int, str], OrderedDict[RequestId, Waiting]] = {}
        self._line_of: dict[RequestId, tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._line_of)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._line_of

    def push(self, waiting: Waiting) -> None:
        """Adds a request, the youngest so far."""
        request = waiting.request
        key = (
            request.priority if self._classes else 0,
            request.tenant if self._fair else "",
        )
        if self._fair:
            self._shares.enter(request.tenant, request.weight)
        self._lines.setdefault(key, OrderedDict())[request.id] = waiting
        self._line_of[request.id] = key

    def remove(self, request_id: RequestId) -> Waiting:
        """Takes a request out, whatever its place."""
        key = self._line_of.pop(request_id)
        line = self._lines[key]
        waiting = line.pop(request_id)
        if not line:
            del self._lines[key]
        if self._fair:
            self._shares.leave(waiting.request.tenant)
        return waiting

    def head(self, now: TimeNs) -> Waiting | None:
        """Who is next."""
        best: tuple[int, float, int] | None = None
        chosen = None
        for (rank, tenant), line in self._lines.items():
            waiting = next(iter(line.values()))
            if self._classes and self._aging:
                rank -= (now - waiting.since) // self._aging
            served = self._shares.served(tenant) if self._fair else 0.0
            key = (rank, served, waiting.arrival)
            if best is None or key < best:
                best, chosen = key, waiting
        return chosen

    def next_rise(self, now: TimeNs) -> TimeNs | None:
        """When the head may change by aging alone."""
        if not (self._classes and self._aging and len(self._lines) > 1):
            return None
        heads = [next(iter(line.values())).since for line in self._lines.values()]
        return TimeNs(min(s + ((now - s) // self._aging + 1) * self._aging for s in heads))
