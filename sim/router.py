"""Routers: which replica gets a request. They see requests and how much each replica has to do, never inside an engine."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol, assert_never

from sim.config import Routing
from traces.schema import TraceRequest

KNOWN_PREFIXES: Final = 1 << 20
"""Prefixes that a prefix-aware router remembers; the one used longest ago goes first."""
FAR_AHEAD: Final = 8
"""A replica with so many more open requests than the least loaded gets no request for its prefix alone."""
_WORTHWHILE: Final = 0.5


class Router(Protocol):
    """Chooses."""

    def choose(self, row: TraceRequest, loads: Sequence[int]) -> int:
        """The replica for a request that is sent now; `loads` are the open requests of each."""
        ...


def make_router(routing: Routing) -> Router:
    """The router of that name."""
    match routing:
        case "round-robin":
            return RoundRobin()
        case "least-loaded":
            return LeastLoaded()
        case "prefix-aware":
            return PrefixAware()
    assert_never(routing)


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, row: TraceRequest, loads: Sequence[int]) -> int:
        """The replica whose turn it is."""
        chosen = self._next
        self._next = (chosen + 1) % len(loads)
        return chosen


class LeastLoaded:
    """The fewest open requests; of several such replicas the first."""

    def choose(self, row: TraceRequest, loads: Sequence[int]) -> int:
        """The replica with the least to do."""
        return min(range(len(loads)), key=loads.__getitem__)


class PrefixAware:
    """The replica that was last sent the longest prefix of the prompt, where that is at least half of it; else the least loaded.

    Remembers what it sent where, as a gateway can; what a replica has evicted since it does not know.
    """

    def __init__(self) -> None:
        self._sent: OrderedDict[int, int] = OrderedDict()
        """Hash id, which stands for a whole prefix, -> replica."""

    def choose(self, row: TraceRequest, loads: Sequence[int]) -> int:
        """The replica that most likely has the prompt's prefix, unless it is far busier than others."""
        ids = row.hash_ids
        depth = len(ids)
        while depth and ids[depth - 1] not in self._sent:
            depth -= 1
        chosen = min(range(len(loads)), key=loads.__getitem__)
        if depth and depth >= _WORTHWHILE * len(ids):
            holder = self._sent[ids[depth - 1]]
            if loads[holder] < loads[chosen] + FAR_AHEAD:
                chosen = holder
        for identity in ids:
            self._sent[identity] = chosen
            self._sent.move_to_end(identity)
        while len(self._sent) > KNOWN_PREFIXES:
            self._sent.popitem(last=False)
        return chosen
