"""What clients are waiting on: every generation between its opening and its release, and how it fares.

So that a shutdown can end them with a reason, a client can cancel one by name, and the page can list them. Knows the engine's
streams and one monotonic clock; knows nothing of HTTP.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from engine.core.errors import CapacityError, ExecutorError, ServeError
from engine.core.ids import RequestId
from engine.requests import Delta, FinishReason, Generation
from gateway.engine import Engine, Stream
from gateway.errors import CancelledError, ShuttingDownError

Clock = Callable[[], float]
"""Seconds that never go back."""

NUM_ADMISSIONS: Final = 1_024
"""Latest admissions by which the rate of admission is measured."""
SHORTEST_SPAN_S: Final = 1.0
"""Over no less than this, so that a batch that is let in at once does not look like a rate."""
SHORTEST_WAIT_MS: Final = 1_000
LONGEST_WAIT_MS: Final = 60_000
"""What a client that is turned away is told to wait lies between these."""
NUM_RECENT: Final = 256
"""How many times to first token are remembered for the page."""


class Exchange:
    """One generation on its way to a client. Times are seconds of the owner's clock, taken where the edge reads a delta."""

    __slots__ = (
        "admitted", "arrived", "cancelled", "endpoint", "finish", "first", "generation", "label", "last", "lasts", "num_choices", "num_generated", "stream",
    )  # fmt: skip

    def __init__(
        self, label: str, endpoint: str, generation: Generation, stream: Stream, now: float
    ) -> None:
        self.label = label
        """The answer's id, which the client learns."""
        self.endpoint = endpoint
        self.generation = generation
        self.stream = stream
        self.num_choices = generation.num_sequences
        self.arrived = now
        self.admitted: float | None = None
        """When it first began to run."""
        self.first: float | None = None
        """When the first text was read."""
        self.last: float | None = None
        """When the latest text was read."""
        self.lasts: dict[int, float] = {}
        """The same by choice."""
        self.num_generated = 0
        self.finish: FinishReason | None = None
        self.cancelled = False

    @property
    def ttft_s(self) -> float | None:
        """Arrival to the first text."""
        return None if self.first is None else self.first - self.arrived


class Ledger(Protocol):
    """Who keeps account of exchanges."""

    def opened(self, exchange: Exchange) -> None:
        """It was taken in."""
        ...

    def heard(self, exchange: Exchange, index: int, num_tokens: int, now: float) -> None:
        """Tokens of choice `index` were read; `exchange.lasts` are still what they were before."""
        ...

    def closed(self, exchange: Exchange, now: float) -> None:
        """It is over, for whatever reason."""
        ...


class OpenStreams:
    """Every exchange between its opening and its release. Used from the event loop's thread only."""

    def __init__(self, engine: Engine, clock: Clock = time.monotonic) -> None:
        self.ledgers: list[Ledger] = []
        """Told of each exchange, in this order."""
        self._engine = engine
        self._clock = clock
        self._exchanges: dict[RequestId, Exchange] = {}
        self._draining = False
        self.num_generated = 0
        """Tokens that were handed to clients so far."""
        self.recent_ttft_s: deque[tuple[int, float]] = deque(maxlen=NUM_RECENT)
        """(number, seconds) of the latest first tokens, numbered from 1."""
        self._num_first = 0
        self._admissions: deque[float] = deque(maxlen=NUM_ADMISSIONS)

    def __len__(self) -> int:
        return len(self._exchanges)

    @property
    def draining(self) -> bool:
        """Whether new requests are refused because the server is ending."""
        return self._draining

    def exchanges(self) -> Iterable[Exchange]:
        """The open ones, oldest first."""
        return self._exchanges.values()

    def open(self, generation: Generation, label: str, endpoint: str) -> Exchange:
        """Starts a generation; the caller must `release` the exchange.

        Raises:
            RequestError: it can never be served.
            CapacityError: not now; or not any more, because the server is ending.
        """
        if self._draining:
            raise ShuttingDownError("the server is shutting down and takes no new requests")
        now = self._clock()
        try:
            stream = self._engine.open(generation)
        except CapacityError as error:
            raise CapacityError(error.message, retry_after_ms=self._wait_ms(now)) from None
        exchange = Exchange(label, endpoint, generation, stream, now)
        self._exchanges[exchange.stream.request_id] = exchange
        for ledger in self.ledgers:
            ledger.opened(exchange)
        return exchange

    def admitted(self, request: RequestId) -> None:
        """The engine runs `request` from now on."""
        now = self._clock()
        self._admissions.append(now)
        exchange = self._exchanges.get(request)
        if exchange is not None:
            exchange.admitted = now

    def heard(self, exchange: Exchange, delta: Delta) -> None:
        """Takes note of what was read of `exchange`."""
        now = self._clock()
        if delta.num_tokens:
            for ledger in self.ledgers:
                ledger.heard(exchange, delta.index, delta.num_tokens, now)
            if exchange.first is None:
                exchange.first = now
                self._num_first += 1
                self.recent_ttft_s.append((self._num_first, now - exchange.arrived))
            exchange.last = exchange.lasts[delta.index] = now
            exchange.num_generated += delta.num_tokens
            self.num_generated += delta.num_tokens
        if delta.finish is not None:
            exchange.finish = delta.finish

    def release(self, exchange: Exchange) -> None:
        """Forgets an exchange, and aborts what has not ended. Any number of times."""
        exchange.stream.abort()
        if self._exchanges.pop(exchange.stream.request_id, None) is not None:
            for ledger in self.ledgers:
                ledger.closed(exchange, self._clock())

    def cancel(self, label: str, tenant: str) -> int:
        """Aborts the open exchanges of `tenant`'s answer `label`; how many these were. Their readers learn why."""
        found = [
            each
            for each in self._exchanges.values()
            if each.label == label and each.generation.tenant == tenant and not each.cancelled
        ]
        for exchange in found:
            exchange.cancelled = True
            exchange.stream.abort()
        return len(found)

    def _wait_ms(self, now: float) -> int:
        """How long half of what waits will take to be admitted, at the rate of the latest admissions."""
        waiting = self._engine.memory().num_waiting
        if not self._admissions:
            return LONGEST_WAIT_MS if waiting else SHORTEST_WAIT_MS
        rate = len(self._admissions) / max(now - self._admissions[0], SHORTEST_SPAN_S)
        wait = round(1000 * waiting / (2 * rate))
        return min(max(wait, SHORTEST_WAIT_MS), LONGEST_WAIT_MS)

    def drain(self) -> None:
        """Takes no new requests from now on."""
        self._draining = True

    def cut(self) -> None:
        """Aborts all streams; their readers learn why from `failure`."""
        self._draining = True
        for exchange in self._exchanges.values():
            exchange.stream.abort()

    def failure(self, exchange: Exchange, delta: Delta) -> ServeError | None:
        """What went wrong, if this delta ends a stream that should have gone on."""
        match delta.finish:
            case FinishReason.ERROR:
                return ExecutorError(delta.error or "the model failed")
            case FinishReason.ABORT if exchange.cancelled:
                return CancelledError("the request was cancelled")
            case FinishReason.ABORT if self._draining:
                return ShuttingDownError("the server shut down before the answer was complete")
            case FinishReason.TIMEOUT:
                return ServeError("the request's deadline passed before the answer was complete")
            case FinishReason.ABORT:
                return ServeError("the request was ended before the answer was complete")
            case _:
                return None
