"""Sends a trace's requests in simulated time: at their arrival, or when the request they wait for has ended and a think time passed.

Knows when to send; knows neither schedulers nor costs.
"""

from collections.abc import Callable, Generator, Iterable, Iterator

import simpy

from engine.core.errors import ServeError
from sim.clock import Clock, Soon
from traces.schema import ROOT, TraceRequest
from traces.transforms import units

Send = Callable[[TraceRequest], int | None]
"""Takes a request that is sent now; the number by which its end will be told, or None where it has ended at once."""


class Workload:
    """The clients: one process that reads the trace, and the sessions that are under way."""

    def __init__(self, clock: Clock, requests: Iterable[TraceRequest], send: Send) -> None:
        """Starts to send once the clock runs; `requests` are in arrival order, those of a session together."""
        self._clock = clock
        self._send = send
        self._waiting: dict[tuple[int, int], list[TraceRequest]] = {}
        """(session, turn) -> requests to send after its end."""
        self._turns: dict[int, tuple[int, int]] = {}
        """Number of an open request -> its (session, turn), where it is of a session."""
        self._num_read = 0
        self._num_sent = 0
        clock.process(self._read(self._counted(requests)))

    @property
    def num_held_back(self) -> int:
        """Requests that were read and not sent: they wait for their arrival, for another one to end, or for their think time to pass."""
        return self._num_read - self._num_sent

    def is_open(self) -> bool:
        """Whether no request waits for the end of one that has been sent."""
        return not self._turns

    def ended(self, number: int) -> None:
        """A request has ended now: those that waited for it are sent when their think time has passed."""
        turn = self._turns.pop(number, None)
        if turn is not None:
            self._release(turn)

    def _counted(self, requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
        for row in requests:
            self._num_read += 1
            yield row

    def _read(self, requests: Iterable[TraceRequest]) -> Generator[simpy.Event, None, None]:
        clock = self._clock
        try:
            for unit in units(requests):
                first = unit[0]
                delay = first.arrival_ns - clock.now
                if delay > 0:
                    yield Soon(clock, delay)
                for row in unit[1:]:
                    if row.after == ROOT:
                        self._send_in(row, max(0, row.arrival_ns - clock.now))
                    else:
                        self._waiting.setdefault((row.session, row.after), []).append(row)
                self._send_now(first)
        except ServeError as error:
            clock.failure = error

    def _send_in(self, row: TraceRequest, delay: int) -> None:
        def callback(_: simpy.Event) -> None:
            self._send_now(row)

        Soon(self._clock, delay).callbacks.append(callback)

    def _send_now(self, row: TraceRequest) -> None:
        self._num_sent += 1
        number = self._send(row)
        if row.session == ROOT:
            return
        turn = (row.session, row.turn)
        if number is None:
            self._release(turn)
        else:
            self._turns[number] = turn

    def _release(self, turn: tuple[int, int]) -> None:
        for row in self._waiting.pop(turn, ()):
            self._send_in(row, row.think_ns)
