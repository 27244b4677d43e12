"""Answers as server-sent events: LF line ends, one `data:` line an event, comments on idle streams, `[DONE]` last.

The only module that knows sse-starlette. Source: HTML Living Standard, section 9.2, "Server-sent events".
"""

from collections.abc import AsyncIterator
from typing import Final

from msgspec import Struct
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import AppStatus, EventSourceResponse, SendTimeoutError
from starlette.types import Receive, Scope, Send

from gateway.config import GatewayConfig
from gateway.schemas import ENCODER

DONE: Final = b"data: [DONE]\n\n"
_PING: Final = ServerSentEvent(comment="ping", sep="\n")
_HEADERS: Final = {"cache-control": "no-cache"}


def event(body: Struct) -> bytes:
    """`body` as one event. JSON strings escape line feeds, so it is one line."""
    return b"data: " + ENCODER.encode(body) + b"\n\n"


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
        ping_message_factory=lambda: _PING,
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
