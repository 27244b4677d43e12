"""The open loop: each request is sent when it is due, whatever became of those before; turns of a session when the turn before has ended and its think time passed.

Bodies are made ahead of their time. A request that is sent late is sent all the same, its lateness noted, and its latency counted from when it was due.
Nothing waits for a free connection: there are as many as requests are open. Knows when and what to send; knows no percentiles and no terminal.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import anyio
from anyio.abc import TaskGroup

from traces.client.answer import NEVER, Answer
from traces.client.connection import Connection
from traces.client.outcomes import Outcomes
from traces.client.prompts import Prompts
from traces.client.target import Target
from traces.schema import ROOT, TraceRequest
from traces.transforms import units

AHEAD: Final = 256
"""Requests that are made before their time, at most."""
AHEAD_BYTES: Final = 1 << 26
_FIRST: Final = 32
"""So many are made before the clock starts."""
_PIECES_A_TURN: Final = 8
"""So many pieces of a prompt are made before the event loop has its turn."""

CONNECTION: Final = "no connection"
LOST: Final = "connection lost"
CUT: Final = "cut short"
EMPTY: Final = "no token"
TIMEOUT: Final = "timeout"


class _Item(NamedTuple):
    due_ns: int
    order: int
    row: TraceRequest
    request: bytes


class Driver:
    """Sends rows to a target and takes in what comes back."""

    def __init__(
        self,
        target: Target,
        prompts: Prompts,
        outcomes: Outcomes,
        *,
        timeout_s: float,
        duration_s: float | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Sends nothing yet.

        Args:
            target: Where to.
            prompts: Makes texts.
            outcomes: Takes what became of each request.
            timeout_s: A request that is not over so long after it was due has failed.
            duration_s: Nothing that is due later is sent.
            clock: Monotonic nanoseconds.
        """
        self.outcomes = outcomes
        self.never_sent = 0
        """Requests that were read and not sent: due after the end, or waiting for one that did not end."""
        self.interrupted = False
        self.end_ns = 0
        """When the run was over."""
        self.num_connections = 0
        self.said: dict[str, str] = {}
        """By kind of failure, the first message."""
        self._target = target
        self._prompts = prompts
        self._timeout_s = timeout_s
        self._until_ns = None if duration_s is None else round(duration_s * 1e9)
        self._clock = clock
        self.start_ns = 0
        """When the run began, on `clock`."""
        self._heap: list[_Item] = []
        self._bytes = 0
        self._waiting: dict[tuple[int, int], list[TraceRequest]] = {}
        self._open: dict[int, _Flight] = {}
        self._idle: list[Connection] = []
        self._order = 0
        self._making = 0
        self._all_read = False
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._ready = asyncio.Event()
        self._group: TaskGroup | None = None
        self._head = target.head()
        self._tls = target.tls()

    @property
    def num_open(self) -> int:
        """Requests under way."""
        return len(self._open)

    def now(self) -> int:
        """Nanoseconds since the run began."""
        return self._clock() - self.start_ns

    def stop(self) -> None:
        """Ends the run: what is open stays unfinished, nothing more is sent."""
        self.interrupted = True
        self._wake.set()

    async def run(self, rows: Iterable[TraceRequest]) -> None:
        """Sends everything and returns when the last answer is over.

        Raises:
            TraceError: from `rows`.
        """
        self.start_ns = self._clock()
        async with anyio.create_task_group() as group:
            self._group = group
            group.start_soon(self._read, rows)
            await self._ready.wait()
            self.start_ns = self._clock()
            await self._dispatch()
            self.end_ns = self.now()
            self.never_sent += (
                len(self._heap) + sum(map(len, self._waiting.values())) + self._making
            )
            for flight in self._open.values():
                flight.abandon()
            for connection in self._idle:
                connection.close()
            group.cancel_scope.cancel()

    # -- making ----------------------------------------------------------------------------------------------------

    async def _read(self, rows: Iterable[TraceRequest]) -> None:
        for unit in units(rows):
            if self._until_ns is not None and unit[0].arrival_ns >= self._until_ns:
                self.never_sent += len(unit)
                break
            for row in unit:
                if row.after != ROOT:
                    self._waiting.setdefault((row.session, row.after), []).append(row)
            for row in unit:
                if row.after == ROOT:
                    self._making += 1
                    await self._make(row, row.arrival_ns)
            if len(self._heap) >= _FIRST:
                self._ready.set()
            while len(self._heap) >= AHEAD or self._bytes >= AHEAD_BYTES:
                self._ready.set()
                self._room.clear()
                await self._room.wait()
        self._all_read = True
        self._ready.set()
        self._wake.set()

    async def _make(self, row: TraceRequest, due_ns: int) -> None:
        """Makes a request's body, a little at a time, and has it sent when it is due; whoever calls has counted it in `_making`."""
        order, self._order = self._order, self._order + 1
        pieces: list[str] = []
        for piece in self._prompts.pieces(row, order):
            pieces.append(piece)
            if len(pieces) % _PIECES_A_TURN == 0:
                await asyncio.sleep(0)
        body = self._target.body(" ".join(pieces), max(1, row.num_output))
        request = self._head + f"{len(body)}\r\n\r\n".encode() + body
        heapq.heappush(self._heap, _Item(due_ns, order, row, request))
        self._bytes += len(request)
        self._making -= 1
        self._wake.set()

    # -- sending ---------------------------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        while not self.interrupted:
            self._wake.clear()
            if not self._heap:
                if self._all_read and not self._open and not self._making:
                    return
                await self._wake.wait()
                continue
            head = self._heap[0]
            if self._until_ns is not None and head.due_ns >= self._until_ns:
                if self._all_read and not self._open and not self._making:
                    return
                self.never_sent += len(self._heap)
                self._heap.clear()
                self._all_read = True
                continue
            wait_ns = head.due_ns - self.now()
            if wait_ns > 0:
                with anyio.move_on_after(wait_ns / 1e9):
                    await self._wake.wait()
                continue
            heapq.heappop(self._heap)
            self._bytes -= len(head.request)
            self._room.set()
            self._send(head)

    def _send(self, item: _Item) -> None:
        row = item.row
        number = self.outcomes.send(
            row.line, item.due_ns, self.now(), row.num_prompt, max(1, row.num_output)
        )
        flight = _Flight(self, number, item)
        self._open[number] = flight
        left_s = max(0.0, self._timeout_s - (self.now() - item.due_ns) / 1e9)
        flight.timer = asyncio.get_running_loop().call_later(left_s, flight.time_out)
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed:
                flight.begin(connection)
                return
        self.connect(flight)

    def connect(self, flight: "_Flight") -> None:
        """Opens a connection for a request."""
        assert self._group is not None
        self._group.start_soon(self._connect, flight)

    async def _connect(self, flight: "_Flight") -> None:
        target = self._target
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self.now, self._on_idle),
                target.host,
                target.port,
                ssl=self._tls,
            )
        except OSError as error:
            flight.end(CONNECTION, self.now(), str(error))
            return
        self.num_connections += 1
        if flight.is_over:
            self._idle.append(connection)
        else:
            flight.begin(connection)

    def _on_idle(self, connection: Connection) -> None:
        self._idle.append(connection)

    def ended(self, number: int, row: TraceRequest) -> None:
        """A request is over; what waited for it is sent when its think time has passed."""
        del self._open[number]
        self._wake.set()
        if row.session == ROOT or self._group is None:
            return
        for follower in self._waiting.pop((row.session, row.turn), ()):
            self._making += 1
            self._group.start_soon(self._make, follower, self.now() + follower.think_ns)


class _Flight:
    """A request under way: an `Exchange`."""

    def __init__(self, driver: Driver, number: int, item: _Item) -> None:
        self.timer: asyncio.TimerHandle | None = None
        self.is_over = False
        self._driver = driver
        self._number = number
        self._item = item
        self._answer = Answer()
        self._connection: Connection | None = None
        self._came_ns = NEVER
        self._tried_again = False

    def begin(self, connection: Connection) -> None:
        """Sends the request."""
        self._connection = connection
        connection.begin(self._item.request, self)

    def body(self, data: bytes, now: int) -> None:
        """See `Exchange`."""
        events = self._answer.feed(data, now)
        if not events:
            return
        outcomes = self._driver.outcomes
        outcomes.came(events, now)
        if self._came_ns != NEVER:
            outcomes.gap(now - self._came_ns)
        self._came_ns = now

    def over(self, status: int, error: bytes, now: int) -> None:
        """See `Exchange`."""
        answer = self._answer
        if status != 200:
            self.end(f"http {status}", now, error.decode("utf-8", errors="replace"))
        elif answer.failure is not None:
            self.end(answer.failure, now)
        elif not answer.finished:
            self.end(CUT if answer.num_events or not answer.complete else EMPTY, now)
        else:
            self.end(None, now)

    def lost(self, began: bool, now: int) -> None:
        """See `Exchange`. A connection that was kept open may have been closed at the other end just then; once, that is no failure."""
        connection = self._connection
        if (
            not began
            and not self._tried_again
            and connection is not None
            and connection.num_exchanges > 1
        ):
            self._tried_again = True
            self._driver.connect(self)
            return
        self.end(CUT if self._answer.num_events else LOST, now)

    def time_out(self) -> None:
        """It took too long."""
        self.end(TIMEOUT, self._driver.now())
        if self._connection is not None:
            self._connection.close()

    def abandon(self) -> None:
        """The run is over; it stays unfinished."""
        self.is_over = True
        if self.timer is not None:
            self.timer.cancel()
        if self._connection is not None:
            self._connection.close()
        self._driver.outcomes.leave(self._number, self._answer)

    def end(self, failure: str | None, now: int, said: str = "") -> None:
        """It is over, well or not."""
        if self.is_over:
            return
        self.is_over = True
        if self.timer is not None:
            self.timer.cancel()
        if failure is not None and said:
            self._driver.said.setdefault(failure, " ".join(said.split())[:300])
        self._driver.outcomes.end(self._number, self._answer, failure, now)
        self._driver.ended(self._number, self._item.row)
