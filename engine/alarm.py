"""Rings when the core's next timer is due, so that the driver comes back then though nothing else happens."""

import asyncio
from collections.abc import Callable
from typing import Final

from engine.core.ids import TimeNs

_SHORTEST_S: Final = 1e-3
"""A timer that is due rings at the next boundary; only where there is none, it rings by itself, and then not more often."""


class Alarm:
    """One alarm, set anew as often as wanted. On the event loop."""

    def __init__(self, clock: Callable[[], int], wake: asyncio.Event) -> None:
        """`wake` is set when it rings; `clock` gives nanoseconds."""
        self._clock = clock
        self._wake = wake
        self._set: tuple[TimeNs, asyncio.TimerHandle] | None = None

    def set(self, due: TimeNs | None) -> None:
        """Rings at `due` and not before; None: not at all."""
        if self._set is not None:
            if self._set[0] == due:
                return
            self._set[1].cancel()
            self._set = None
        if due is not None:
            delay = max((due - self._clock()) * 1e-9, _SHORTEST_S)
            self._set = (due, asyncio.get_running_loop().call_later(delay, self._ring))

    def _ring(self) -> None:
        self._set = None
        self._wake.set()
