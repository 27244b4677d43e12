"""One HTTP/1.1 connection that carries one exchange at a time: a request as bytes, the answer's body handed on as it arrives, with its time.

httptools parses; times are taken when bytes arrive, before they are looked at. Knows nothing of events, pools and schedules.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools

ERROR_BYTES: Final = 2048
"""So much of an error's body is kept."""


class Exchange(Protocol):
    """Who sent the request."""

    def body(self, data: bytes, now: int) -> None:
        """Bytes of a successful answer came."""
        ...

    def over(self, status: int, error: bytes, now: int) -> None:
        """The answer is complete; `error` is the beginning of its body where the status is not 200."""
        ...

    def lost(self, began: bool, now: int) -> None:
        """The connection broke before the answer was complete; `began`: something of it had come."""
        ...


class Connection(asyncio.Protocol):
    """Idle, or in an exchange."""

    def __init__(self, clock: Callable[[], int], on_idle: Callable[["Connection"], None]) -> None:
        """`on_idle` is told when another exchange may begin."""
        self._clock = clock
        self._on_idle = on_idle
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._began = False
        self._error = b""
        self._now = 0
        self.is_closed = False
        self.num_exchanges = 0

    def begin(self, request: bytes, exchange: Exchange) -> None:
        """Sends a request; the connection is idle."""
        assert self._transport is not None
        self._exchange = exchange
        self._began = False
        self._status = 0
        self._error = b""
        self.num_exchanges += 1
        self._transport.write(request)

    def close(self) -> None:
        """Breaks the connection; the exchange is not told."""
        self._exchange = None
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._now = self._clock()
        self._began = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._lose(self._now)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self.is_closed = True
        self._lose(self._clock())

    def _lose(self, now: int) -> None:
        exchange, self._exchange = self._exchange, None
        self.close()
        if exchange is not None:
            exchange.lost(self._began, now)

    # -- httptools -------------------------------------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        """See httptools."""
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """See httptools."""
        if self._exchange is None:
            return
        if self._status == 200:
            self._exchange.body(data, self._now)
        elif len(self._error) < ERROR_BYTES:
            self._error += data[:ERROR_BYTES]

    def on_message_complete(self) -> None:
        """See httptools."""
        exchange, self._exchange = self._exchange, None
        if not self._parser.should_keep_alive():
            self.close()
        if exchange is not None:
            exchange.over(self._status, self._error, self._now)
        if not self.is_closed:
            self._on_idle(self)
