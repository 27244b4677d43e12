"""Answers as server-sent events: LF line ends, one `data:` line an event, comments on idle streams, `[DONE]` last.

The only module that knows sse-starlette, which serves the live page's feed and says what headers a stream has. Token streams are
written by `EventWriter` without a task switch, a lock or a timer for each event, see docs/decisions.md.
Source: HTML Living Standard, section 9.2, "Server-sent events".
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, cast

from msgspec import Struct
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import AppStatus, EventSourceResponse, SendTimeoutError
from starlette.types import Receive, Scope, Send

from gateway.config import GatewayConfig
from gateway.connection import Connection
from gateway.schemas import ENCODER

DONE: Final = b"data: [DONE]\n\n"
_COMMENT: Final = ServerSentEvent(comment="ping", sep="\n")
_PING: Final = _COMMENT.encode()
_HEADERS: Final = {"cache-control": "no-cache"}


def event(body: Struct) -> bytes:
    """`body` as one event. JSON strings escape line feeds, so it is one line."""
    return b"data: " + ENCODER.encode(body) + b"\n\n"


class TextEvent:
    """An event that differs from the next one of its kind in one text only: the bytes around it are made once."""

    __slots__ = ("_after", "_before")

    def __init__(self, body: Callable[[str], Struct]) -> None:
        """`body` makes the event's body, in which the text that it is given stands once, as JSON."""
        self._before, self._after = event(body(_MARK)).split(ENCODER.encode(_MARK))

    def fill(self, text: str) -> bytes:
        """The same as `event(body(text))`."""
        return self._before + ENCODER.encode(text) + self._after


_MARK: Final = os.urandom(16).hex()
"""What no text, name or id contains."""


class EventWriter:
    """An event stream to one client. Nothing here waits: whoever writes asks first whether the stream is `writable`.

    Sees to comments while nothing is written, and to clients that stop reading. For the event loop's thread.
    """

    def __init__(
        self,
        connection: Connection | None,
        send: Send,
        config: GatewayConfig,
        on_writable: Callable[[], None],
        on_stall: Callable[[], None],
    ) -> None:
        """Listens to the connection; the caller must `close`.

        Args:
            connection: None where the server buffers without end, so that each message goes out at once.
            send: of ASGI.
            config: how long to wait.
            on_writable: called when the stream can go on after it was not writable.
            on_stall: called when it could not for `send_timeout_s`.
        """
        self._connection = connection
        self._send = send
        self._ping_s = config.ping_s
        self._stall_s = config.send_timeout_s
        self._on_writable = on_writable
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        """When something was written."""
        self._stuck_since: float | None = None
        self.started = False
        """Whether the response has begun: what fails now can only be said by an event."""
        if connection is not None:
            connection.listen(self._resumed)
            self._note_if_stuck()

    @property
    def writable(self) -> bool:
        """Whether `start` and `write` may be called."""
        return self._connection is None or self._connection.writable

    def start(self) -> None:
        """Sends the headers, if they have not been sent."""
        if not self.started:
            self.started = True
            self._put({"type": "http.response.start", "status": 200, "headers": _start_headers()})
            self._last = self._loop.time()
            self._rearm()

    def write(self, events: bytes) -> None:
        """Sends whole events as one chunk."""
        if not self.started:
            self.start()
        if self._connection is None:
            self._put({"type": "http.response.body", "body": events, "more_body": True})
        else:
            self._connection.write(events)
        self._last = self._loop.time()
        self._note_if_stuck()

    def close(self) -> None:
        """Calls nobody any more. Any number of times."""
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            self._connection.listen(None)

    def _put(self, message: dict[str, Any]) -> None:
        """Sends a message that goes out at once.

        Raises:
            RuntimeError: it did not, because the server is none of ours.
        """
        sending = cast("Coroutine[Any, Any, None]", self._send(message))
        try:
            sending.send(None)
        except StopIteration:
            return
        sending.close()
        raise RuntimeError("the server made a message wait that it had said it would take at once")

    def _note_if_stuck(self) -> None:
        if not self.writable and self._stuck_since is None:
            self._stuck_since = self._loop.time()
            self._rearm()

    def _resumed(self) -> None:
        self._stuck_since = None
        self._rearm()
        self._on_writable()

    def _rearm(self) -> None:
        """Sets the timer for what comes next: a comment, or the end of patience."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stuck_since is not None:
            self._timer = self._loop.call_at(self._stuck_since + self._stall_s, self._on_stall)
        elif self.started and self._ping_s:
            self._timer = self._loop.call_at(self._last + self._ping_s, self._ring)

    def _ring(self) -> None:
        """Sends a comment, if nothing was written meanwhile. Where it cannot, as on a connection that is closing, patience begins."""
        self._timer = None
        if self._loop.time() >= self._last + self._ping_s:
            if self.writable:
                self.write(_PING)
            else:
                self._note_if_stuck()
        self._rearm()


def _start_headers() -> list[tuple[bytes, bytes]]:
    return list(_RAW_HEADERS)


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield


_RAW_HEADERS: Final = tuple(EventSourceResponse(_nothing(), headers=_HEADERS).raw_headers)


async def send_events(
    events: AsyncIterator[bytes], config: GatewayConfig, scope: Scope, receive: Receive, send: Send
) -> bool:
    """Sends encoded events until they end, the client leaves, or takes nothing for `send_timeout_s`: False then.

    Headers keep proxies from buffering. In each case `events` has been closed when this returns.
    """
    response = EventSourceResponse(
        events,
        headers=_HEADERS,
        ping=config.ping_s,
        ping_message_factory=lambda: _COMMENT,
        sep="\n",
        send_timeout=config.send_timeout_s,
    )
    try:
        await response(scope, receive, send)
    except SendTimeoutError:
        return False
    return True


def own_the_shutdown() -> None:
    """Tells sse-starlette not to cut streams by itself when the server gets a signal: `gateway.server` ends them with a reason."""
    AppStatus.enable_automatic_graceful_drain = False
