"""SimPy's environment with integer nanoseconds as its time, and a defined order of what happens at one instant.

At one instant the events of lower rank come first: arrivals, then what happens to replicas, by replica.
"""

import math
from heapq import heappop
from typing import Final

import simpy
from simpy.events import URGENT

from engine.core.errors import ServeError
from engine.core.ids import TimeNs

FOREVER: Final = math.inf
_NOTHING: Final = -1


class Clock(simpy.Environment):
    """Simulated time from the first arrival."""

    failure: ServeError | None = None
    """Set by a process to stop the run with this error."""
    _reached: int = URGENT
    """The latest rank of what has happened at the present instant."""

    @property
    def now(self) -> TimeNs:
        """The present instant."""
        return self._now  # type: ignore[return-value]

    def has_passed(self, when: int, rank: int) -> bool:
        """Whether what is due at `when` with this rank has had its turn."""
        return when < self._now or (when == self._now and rank <= self._reached)

    def run_on(self, until_ns: int | None) -> None:
        """Takes all events that are due before `until_ns`, or all there are; time stops there, or at the last event.

        An event that nobody waits for any more is passed over and takes no time.

        (An error raised inside a process would be rebuilt by SimPy from its arguments, so `failure` carries it.)

        Raises:
            ServeError: a process left one in `failure`.
        """
        end = FOREVER if until_ns is None else until_ns
        queue = self._queue
        while queue and queue[0][0] < end and self.failure is None:
            when, rank, _, event = queue[0]
            callbacks = event.callbacks
            if not callbacks and event.ok:
                heappop(queue)
                continue
            if when != self._now or rank > self._reached:
                self._reached = rank
            if not event.ok:
                self.step()
                continue
            # What `step` does with an event that has not failed, without its provisions for others.
            heappop(queue)
            self._now = when
            event.callbacks = None  # type: ignore[assignment]
            for callback in callbacks:
                callback(event)
        if self.failure is not None:
            raise self.failure
        if until_ns is not None and any(_is_awaited(event) for _, _, _, event in queue):
            self._now = until_ns
            self._reached = _NOTHING


def _is_awaited(event: simpy.Event) -> bool:
    return bool(event.callbacks) or not event.ok


class Soon(simpy.Event):
    """Happens `delay` nanoseconds from now, after what is of lower rank; by default before whatever else is due then."""

    def __init__(self, clock: Clock, delay: int, rank: int = URGENT) -> None:
        self.env = clock
        self.callbacks = []
        self._ok = True
        self._value = None
        clock.schedule(self, rank, delay)  # type: ignore[arg-type]
