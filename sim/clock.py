"""SimPy's environment with integer nanoseconds as its time, and events that come before others of the same instant."""

import math
from typing import Final

import simpy
from simpy.events import URGENT

from engine.core.errors import ServeError
from engine.core.ids import TimeNs

FOREVER: Final = math.inf


class Clock(simpy.Environment):
    """Simulated time from the first arrival."""

    failure: ServeError | None = None
    """Set by a process to stop the run with this error."""

    @property
    def now(self) -> TimeNs:
        """The present instant."""
        return self._now  # type: ignore[return-value]

    def run_on(self, until_ns: int | None) -> None:
        """Takes all events that are due before `until_ns`, or all there are; time stops there, or at the last event.

        (An error raised inside a process would be rebuilt by SimPy from its arguments, so `failure` carries it.)

        Raises:
            ServeError: a process left one in `failure`.
        """
        end = FOREVER if until_ns is None else until_ns
        while self.peek() < end and self.failure is None:
            self.step()
        if self.failure is not None:
            raise self.failure
        if until_ns is not None and self.peek() < FOREVER:
            self._now = until_ns


class Soon(simpy.Event):
    """Happens `delay` nanoseconds from now, before whatever else is due at that instant."""

    def __init__(self, clock: Clock, delay: int) -> None:
        super().__init__(clock)
        self._ok = True
        self._value = None
        clock.schedule(self, URGENT, delay)
