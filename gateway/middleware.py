"""Wrappers around the whole application, plain ASGI. Each does one thing to every HTTP exchange."""

import re
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.core.errors import RequestError
from gateway.errors import error_response

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


class HeaderLimitMiddleware:
    """Refuses requests whose target and headers are larger than anything a client needs. RFC 6585, section 5."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the exchange on if it is small enough."""
        if scope["type"] == "http":
            size = len(scope["path"]) + len(scope["query_string"])
            size += sum(len(name) + len(value) for name, value in scope["headers"])
            if size > self._limit:
                error = RequestError(
                    f"the request's target and headers take {size} bytes; at most {self._limit} are allowed",
                    code="headers_too_large",
                )
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)
