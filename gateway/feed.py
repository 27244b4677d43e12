"""What the live page is fed: the pool's frames by deltas, numbers and the list of requests, as server-sent events.

Each viewer has a last map of its own, so one that reads slowly gets fewer and larger deltas and costs nothing in between.
The engine is watched only while somebody looks. Knows the view's delta format; knows nothing of how it is drawn.
"""

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import Final

import anyio
from msgspec import Struct

from engine.core.errors import CapacityError
from engine.core.frames import FrameMap
from engine.core.log import Record
from gateway.config import GatewayConfig
from gateway.engine import Engine
from gateway.sse import event
from gateway.streams import Exchange, OpenStreams
from traces.viewer.delta import MAX_EVENTS, Delta, delta, events_of, whole

NUMBERS_EVERY: Final = 5
"""Numbers and requests are sent with every so-many-th look at the frames."""
MAX_LISTED: Final = 100
"""Most requests in the list; those that run come first."""


class Hello(Struct, frozen=True, tag_field="type", tag="hello"):
    """The first event: what is served, and by what."""

    model: str
    version: str
    block_size: int
    total_blocks: int
    max_context: int


class Frames(Delta, frozen=True, omit_defaults=True, tag_field="type", tag="frames"):
    """A map, or its changes since the event before."""


class RequestRow(Struct, frozen=True):
    """One open request."""

    id: int
    """The engine's number, which owns frames."""
    label: str
    """The answer's id, by which it can be cancelled."""
    state: str
    prompt: int
    cached: int
    """Prompt tokens that the prefix cache held."""
    out: int
    age_s: float
    ttft_ms: float | None


class Numbers(Struct, frozen=True, tag_field="type", tag="now"):
    """Memory, queues and totals at one moment."""

    status: str
    free: int
    cached: int
    held: int
    moving: int
    used_tokens: int
    allocated_tokens: int
    logical_blocks: int
    host_blocks: int
    host_used_blocks: int
    running: int
    waiting: int
    swapped: int
    tokens: int
    """Handed to clients so far."""
    preemptions: int
    ttft_ms: tuple[float, ...]
    """Of first tokens since the event before."""
    requests: tuple[RequestRow, ...]
    num_requests: int


def own_version() -> str:
    """The installed version of this package."""
    try:
        return version("kilburn")
    except PackageNotFoundError:
        return "unknown"


class LiveFeed:
    """Feeds any number of viewers, up to a limit. Used from the event loop's thread only."""

    def __init__(
        self,
        engine: Engine,
        streams: OpenStreams,
        config: GatewayConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._streams = streams
        self._config = config
        self._clock = clock
        self._viewers = 0
        self._events: deque[tuple[int, list[int | str]]] = deque(maxlen=MAX_EVENTS)
        self._num_events = 0
        self._frames: tuple[float, FrameMap] | None = None

    def check_room(self) -> None:
        """Raises `CapacityError` where as many look as may."""
        if self._viewers >= self._config.max_viewers:
            raise CapacityError(
                f"as many live pages are open as this server feeds at once: {self._viewers}"
            )

    @contextmanager
    def seat(self) -> Iterator[None]:
        """One viewer more while it lasts; take it in the same turn of the event loop as `check_room`."""
        self._viewers += 1
        if self._viewers == 1:
            self._engine.watch(self._watch)
        try:
            yield
        finally:
            self._viewers -= 1
            if self._viewers == 0:
                self._engine.watch(None)
                self._events.clear()
                self._frames = None

    async def events(self) -> AsyncIterator[bytes]:
        """The events of one viewer, who has a seat, until it leaves or the server has ended its streams."""
        async for body in self._look():
            yield event(body)

    async def _look(self) -> AsyncIterator[Struct]:
        memory = self._engine.memory()
        yield Hello(
            self._engine.model_name,
            own_version(),
            memory.block_size,
            memory.total_blocks,
            self._engine.max_context,
        )
        seen_events, seen_first = self._num_events, self._last_first()
        last = self._snapshot()
        yield _frames(whole(last))
        turn = 0
        while True:
            if turn % NUMBERS_EVERY == 0:
                yield self._numbers(seen_first)
                seen_first = self._last_first()
                if self._streams.draining and not len(self._streams):
                    return
            turn += 1
            await anyio.sleep(self._config.view_interval_s)
            current = self._snapshot()
            change = delta(last, current, [e for number, e in self._events if number > seen_events])
            last, seen_events = current, self._num_events
            if not change.is_empty:
                yield _frames(change)

    def _snapshot(self) -> FrameMap:
        """The map now, or the one that another viewer has just taken."""
        now = self._clock()
        if self._frames is None or now - self._frames[0] > self._config.view_interval_s / 2:
            self._frames = (now, self._engine.frames())
        return self._frames[1]

    def _watch(self, records: list[Record]) -> None:
        for happened in events_of(records):
            self._num_events += 1
            self._events.append((self._num_events, happened))

    def _last_first(self) -> int:
        recent = self._streams.recent_ttft_s
        return recent[-1][0] if recent else 0

    def _numbers(self, seen_first: int) -> Numbers:
        memory, streams = self._engine.memory(), self._streams
        return Numbers(
            status="draining" if streams.draining else "serving",
            free=memory.free_blocks,
            cached=memory.cached_blocks,
            held=memory.held_blocks,
            moving=memory.moving_blocks,
            used_tokens=memory.used_tokens,
            allocated_tokens=memory.allocated_tokens,
            logical_blocks=memory.logical_blocks,
            host_blocks=memory.host_blocks,
            host_used_blocks=memory.host_used_blocks,
            running=memory.num_running,
            waiting=memory.num_waiting,
            swapped=memory.num_swapped,
            tokens=streams.num_generated,
            preemptions=self._engine.counters.preemptions,
            ttft_ms=tuple(
                round(1000 * seconds, 1)
                for number, seconds in streams.recent_ttft_s
                if number > seen_first
            ),
            requests=self._rows(),
            num_requests=len(streams),
        )

    def _rows(self) -> tuple[RequestRow, ...]:
        now, states = self._clock(), self._engine.statuses()

        def state(exchange: Exchange) -> str:
            return states.get(exchange.stream.request_id, "waiting")

        ordered = sorted(self._streams.exchanges(), key=lambda each: state(each) == "waiting")
        return tuple(
            RequestRow(
                exchange.stream.request_id,
                exchange.label,
                state(exchange),
                exchange.stream.num_prompt,
                exchange.stream.num_cached,
                exchange.num_generated,
                round(now - exchange.arrived, 1),
                None if exchange.ttft_s is None else round(1000 * exchange.ttft_s, 1),
            )
            for exchange in islice(ordered, MAX_LISTED)
        )


def _frames(change: Delta) -> Frames:
    return Frames(change.total, change.runs, change.others, change.events)
