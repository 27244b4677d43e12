"""What ASGI cannot say of a connection, as an extension of ours in the scope: whether it takes more now, when it does again, and: reset it.

A client that has stopped reading cannot be told anything: what is left in the buffers would wait for it for ever, in the process
and, after an orderly close, in the system. A reset frees both and tells the client at its next read.
"""

import socket
import struct
import sys
from asyncio import TimerHandle
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

EXTENSION: Final = "kilburn.connection"
MOST_PIPELINED: Final = 16
"""Requests that wait behind one on a connection before it is read no further, and a client that leaves goes unnoticed."""
_LINGER_NOT: Final = struct.pack("ii", 1, 0)


class Connection(Protocol):
    """The way to one client."""

    @property
    def writable(self) -> bool:
        """Whether a message that is sent now goes out without waiting."""
        ...

    def listen(self, told: Callable[[], None] | None) -> None:
        """Calls `told` whenever it is writable again, or lost, in place of whom it told before."""
        ...

    def write(self, body: bytes) -> None:
        """Sends a part of the body of the response that has been started; `writable` must hold. Goes past what wraps `send`."""
        ...

    def reset(self) -> None:
        """Drops the connection and all that is buffered for it; the application's `receive` says so at once."""
        ...


class WatchedProtocol(HttpToolsProtocol):
    """The protocol of uvicorn that offers itself as a `Connection` to the application.

    After a response the client has `patience_s` to take what is still buffered; then the connection is reset.
    """

    patience_s = 30.0
    _told: Callable[[], None] | None = None
    _lingering: TimerHandle | None = None
    _serving: RequestResponseCycle | None = None
    """The latest request that the application has been given; uvicorn's `cycle` is the latest that came in."""

    def on_message_begin(self) -> None:
        """Begins a request as usual, and adds the extension to its scope."""
        super().on_message_begin()
        self._linger_no_more()
        self.scope["extensions"] = {EXTENSION: {"connection": self}}

    def on_headers_complete(self) -> None:
        """Hands the request on; one that must wait for the one before it does not stop the reading, which is how leaving is noticed."""
        super().on_headers_complete()
        if 0 < len(self.pipeline) <= MOST_PIPELINED:
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._serving = cycle
        if cycle.scope["http_version"] == "1.0":
            app = _ended_by_close(app, cycle)
        super()._start_asgi_task(cycle, app)

    @property
    def writable(self) -> bool:
        """As `Connection` says."""
        return not (self.flow.write_paused or self.transport.is_closing())

    def listen(self, told: Callable[[], None] | None) -> None:
        """As `Connection` says."""
        self._told = told

    def write(self, body: bytes) -> None:
        """As `Connection` says. RFC 9112, section 7.1."""
        assert self._serving is not None
        if self._serving.chunked_encoding:
            body = b"%x\r\n%b\r\n" % (len(body), body)
        self.transport.write(body)

    def reset(self) -> None:
        """As `Connection` says."""
        endpoint = self.transport.get_extra_info("socket")
        if endpoint is not None:
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self.transport.abort()

    def resume_writing(self) -> None:
        """The client has taken most of what was buffered."""
        super().resume_writing()
        if self._told is not None:
            self._told()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is no more, whoever ended it: what is being answered hears of it, and what waited behind is dropped."""
        self._linger_no_more()
        super().connection_lost(exc)
        self.pipeline.clear()
        if self._serving is not None and not self._serving.response_complete:
            self._serving.disconnected = True
            self._serving.message_event.set()

    def on_response_complete(self) -> None:
        """The application has said all; the client may not have taken it."""
        if self.transport.get_write_buffer_size():
            self._linger_no_more()
            self._lingering = self.loop.call_later(self.patience_s, self._abandon)
        super().on_response_complete()

    def _abandon(self) -> None:
        if self.transport.get_write_buffer_size():
            self.reset()

    def _linger_no_more(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None


def _ended_by_close(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """For clients of HTTP/1.0, who know no chunks: a body of unknown length ends with the connection. RFC 9112, sections 6.1 and 6.3.

    uvicorn would chunk it. It closes the connection after each response to such a client, so no response says `keep-alive`; and an
    expectation of a 100 is ignored, which such a client would take for the answer (RFC 9110, section 10.1.1).
    """
    cycle.waiting_for_100_continue = False

    async def called(scope: Any, receive: Any, send: Any) -> None:
        endless = False

        async def unchunked(message: Any) -> None:
            nonlocal endless
            if message["type"] == "http.response.start":
                headers = [pair for pair in message["headers"] if pair[0].lower() != b"connection"]
                message = {**message, "headers": headers}
                endless = all(name.lower() != b"content-length" for name, _ in headers)
                if endless:
                    cycle.chunked_encoding = False
                    cycle.expected_content_length = sys.maxsize
            elif endless and not message.get("more_body", False):
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, unchunked)

    return called


def connection_of(scope: Mapping[str, Any]) -> Connection | None:
    """The connection of the request in `scope`, where it runs under a server of ours."""
    found: Connection | None = (scope.get("extensions") or {}).get(EXTENSION, {}).get("connection")
    return found
