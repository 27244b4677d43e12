"""Wrappers around the whole application, plain ASGI. Each does one thing to every HTTP exchange."""

import re
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER: Final = "x-request-id"
_ACCEPTABLE: Final = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIdMiddleware:
    """Echoes the client's `x-request-id`, or gives one. It is a label for logs and never a key."""

    def __init__(self, app: ASGIApp, new_id: Callable[[], str]) -> None:
        self._app = app
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the exchange on, with the header added to the response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        label = given if _ACCEPTABLE.fullmatch(given) else f"req-{self._new_id()}"

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = label
            await send(message)

        await self._app(scope, receive, labelled)
