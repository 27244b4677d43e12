"""How slow and how large the head of a request may be, and what is said where there is none.

The parser keeps an unfinished head in memory without a bound of its own; heads that are complete are measured in `gateway.middleware`.
"""

import asyncio
import sys

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from engine.core.errors import RequestError, ServeError
from gateway.connection import WatchedProtocol
from gateway.errors import describe
from gateway.schemas import ENCODER


class BoundedProtocol(WatchedProtocol):
    """A protocol with bounds on unfinished heads.

    The bounds are uvicorn's settings `h11_max_incomplete_event_size`, in bytes, and `timeout_keep_alive`, in seconds.
    """

    _late: asyncio.TimerHandle | None = None
    _in_head = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request's head."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no more."""
        self._head_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses; then ends the connection if a head that was unfinished before is so still, and too large."""
        unfinished = self._in_head
        super().data_received(data)
        if unfinished and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > (self.config.h11_max_incomplete_event_size or sys.maxsize):
                self._refuse(431, "the request's target and headers are too large")
        elif not self._in_head and self.cycle is not None and self.cycle.response_complete:
            self._wait_for_head()  # the rest of a body that nobody reads, which ended uvicorn's wait

    def on_message_begin(self) -> None:
        """Begins a request as usual."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._wait_for_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Takes a header; drops trailers, which nobody reads (RFC 9110, section 6.5.1)."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hands the request on."""
        self._in_head = False
        self._head_is_there()
        super().on_headers_complete()

    def _wait_for_head(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self.timeout_keep_alive, self._give_up)

    def _head_is_there(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if self._in_head:
            self._refuse(408, "the request's headers did not arrive in time")
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn says where the bytes are no HTTP, in the usual shape."""
        self._refuse(400, "the request is not valid HTTP/1.1")

    def refuse_unfinished(self, error: ServeError) -> None:
        """Ends the connection with `error` where a request has begun to come in and is not complete."""
        if self._in_head or (self.cycle is not None and self.cycle.more_body):
            self._answer(error)

    def _refuse(self, status: int, message: str) -> None:
        code = {400: "invalid_http", 408: "request_timeout", 431: "headers_too_large"}[status]
        self._answer(RequestError(message, code=code))

    def _answer(self, error: ServeError) -> None:
        """Ends the connection, with an error in the usual shape unless an answer is on its way, which then ends here."""
        status, body = describe(error)
        content = ENCODER.encode(body)
        head = f"content-type: application/json\r\ncontent-length: {len(content)}\r\nconnection: close\r\n\r\n"
        self._in_head = False
        self._head_is_there()
        cycle = self._serving
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(STATUS_LINE[status] + head.encode() + content)
        self.transport.close()
