"""What ASGI cannot say of a connection: reset it, because its client has stopped reading; and how slow and how large the head of a
request may be.

A client that has stopped reading cannot be told anything: what is left in the buffers would wait for it for ever, in the process
and, after an orderly close, in the system. A reset frees both and tells the client at its next read. The parser keeps an
unfinished head in memory without a bound of its own; heads that are complete are measured in `gateway.middleware`.
"""

import asyncio
import socket
import struct
import sys
from collections.abc import Mapping
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from engine.core.errors import RequestError
from gateway.errors import describe
from gateway.schemas import ENCODER

EXTENSION: Final = "kilburn.connection"
_LINGER_NOT: Final = struct.pack("ii", 1, 0)


class ResettableProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with bounds on unfinished heads, and offering the extension to the application.

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

    def on_message_begin(self) -> None:
        """Begins a request as usual, and adds the extension to its scope."""
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: {"reset": self.reset}}
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

    def _refuse(self, status: int, message: str) -> None:
        """Ends the connection, with an error in the usual shape unless an answer is on its way, which then ends here."""
        code = {400: "invalid_http", 408: "request_timeout", 431: "headers_too_large"}[status]
        _, body = describe(RequestError(message, code=code))
        content = ENCODER.encode(body)
        head = f"content-type: application/json\r\ncontent-length: {len(content)}\r\nconnection: close\r\n\r\n"
        self._in_head = False
        self._head_is_there()
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(STATUS_LINE[status] + head.encode() + content)
        self.transport.close()

    def reset(self) -> None:
        """Drops the connection and all that is buffered for it; the application's `receive` says so at once."""
        endpoint = self.transport.get_extra_info("socket")
        if endpoint is not None:
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self.transport.abort()


def reset(scope: Mapping[str, Any]) -> bool:
    """Whether the server could reset the connection of the request in `scope`."""
    extension = (scope.get("extensions") or {}).get(EXTENSION)
    if extension is None:
        return False
    extension["reset"]()
    return True
