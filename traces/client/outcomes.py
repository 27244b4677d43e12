"""What became of each request that was sent: a row of integers for each, no object. Prints nothing.

sent == done + failed + unfinished, at every moment. All times are nanoseconds from the start of the run; latencies count from the time at which a
request was due, not from when it was sent, so that a client or a server that falls behind hides nothing (no coordinated omission).
"""

import math
from array import array
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traces.client.answer import NEVER, Answer

BIN_NS: Final = 50_000_000
"""Events are counted in bins of this width."""
_PER_E_FOLD: Final = 100
"""Bins of the histogram of gaps: 1 % wide."""


class State(IntEnum):
    """Where a request stands; all but `OPEN` are final."""

    OPEN = 0
    DONE = 1
    FAILED = 2


class Outcomes:
    """Columns by request, numbered from 0 in the order of sending."""

    def __init__(self) -> None:
        self.line = array("q")
        self.due_ns = array("q")
        self.started_ns = array("q")
        """When the client got round to it."""
        self.first_ns = array("q")
        self.last_ns = array("q")
        self.end_ns = array("q")
        self.asked_prompt = array("q")
        self.asked_output = array("q")
        self.prompt = array("q")
        """As the server counted; -1: it did not say."""
        self.output = array("q")
        self.cached = array("q")
        """Of `prompt`, by the server's prefix cache; -1: it did not say."""
        self.state = array("b")
        self.why: dict[int, str] = {}
        """Of each request that failed: the kind of failure."""
        self.events: dict[int, int] = {}
        """Events with text, by bin."""
        self.num_events = 0
        self._gaps: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.state)

    def send(
        self, line: int, due_ns: int, started_ns: int, num_prompt: int, num_output: int
    ) -> int:
        """The number of a request that is sent now."""
        self.line.append(line)
        self.due_ns.append(due_ns)
        self.started_ns.append(started_ns)
        self.asked_prompt.append(num_prompt)
        self.asked_output.append(num_output)
        for column in (
            self.first_ns, self.last_ns, self.end_ns, self.prompt, self.output, self.cached
        ):  # fmt: skip
            column.append(NEVER)
        self.state.append(State.OPEN)
        return len(self.state) - 1

    def came(self, events: int, now: int) -> None:
        """So many events with text came at once."""
        self.num_events += events
        place = now // BIN_NS
        self.events[place] = self.events.get(place, 0) + events

    def gap(self, gap_ns: int) -> None:
        """So long passed between two deliveries of one answer."""
        place = int(math.log(max(1, gap_ns)) * _PER_E_FOLD)
        self._gaps[place] = self._gaps.get(place, 0) + 1

    def end(self, number: int, answer: Answer, failure: str | None, now: int) -> None:
        """The request has ended: well, or with a kind of failure."""
        self.first_ns[number] = answer.first_ns
        self.last_ns[number] = answer.last_ns
        self.end_ns[number] = now
        if answer.usage is not None:
            self.prompt[number] = answer.usage.prompt_tokens
            self.output[number] = answer.usage.completion_tokens
            cached = answer.usage.cached
            self.cached[number] = NEVER if cached is None else cached
        if failure is None:
            self.state[number] = State.DONE
        else:
            self.state[number] = State.FAILED
            self.why[number] = failure

    def leave(self, number: int, answer: Answer) -> None:
        """The run is over and the request is not: what has come of it stays."""
        self.first_ns[number] = answer.first_ns
        self.last_ns[number] = answer.last_ns

    # -- figures ---------------------------------------------------------------------------------------------------

    def ints(self, name: str) -> NDArray[np.int64]:
        """A column."""
        return np.frombuffer(getattr(self, name), np.int64)

    def count(self, state: State) -> int:
        """Requests in that state."""
        return int(np.count_nonzero(np.frombuffer(self.state, np.int8) == state))

    def failures(self) -> dict[str, int]:
        """Failed requests by kind, most frequent first."""
        counts: dict[str, int] = {}
        for kind in self.why.values():
            counts[kind] = counts.get(kind, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def gap_ms(self, shares: tuple[float, ...]) -> list[float]:
        """Values that so large a share of the gaps does not exceed, within 1 %; empty without gaps."""
        if not self._gaps:
            return []
        places = sorted(self._gaps)
        upto = np.cumsum([self._gaps[place] for place in places])
        at = np.searchsorted(upto, [share * upto[-1] for share in shares])
        return [
            math.exp((places[min(int(i), len(places) - 1)] + 0.5) / _PER_E_FOLD) / 1e6 for i in at
        ]

    @property
    def num_gaps(self) -> int:
        """Gaps that were seen."""
        return sum(self._gaps.values())
