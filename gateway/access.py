"""Who may go where: an API key for all but the paths that operators probe, and bounds on a request's headers. Plain ASGI.

The tenant goes with the request, as `request.state.tenant`, and what it may still use goes back in the response's headers. Knows
keys and paths; knows nothing of bodies.
"""

import re
from collections.abc import Collection, Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.core.errors import RequestError
from gateway.allowance import Allowances
from gateway.errors import error_response
from gateway.middleware import HEADER as REQUEST_ID
from gateway.tenants import ANYONE, Tenant, Tenants

OPEN_PATHS: Final = frozenset(
    {"/health", "/ready", "/version", "/metrics", "/openapi.json", "/", "/page.css", "/page.js"}
)
"""Need no key: probes and scrapes of operators, and files that say nothing of anybody."""
_BEARER: Final = re.compile(r"bearer +([^ ]+) *", re.IGNORECASE)
_CHALLENGE: Final = 'Bearer realm="kilburn"'
_EXPOSED: Final = (
    REQUEST_ID,
    "retry-after",
    *(
        f"x-ratelimit-{word}-{what}"
        for what in ("requests", "tokens")
        for word in ("limit", "remaining", "reset")
    ),
)
"""Response headers that scripts of other origins may read."""


def tenant_of(request: Request) -> Tenant:
    """Whose request it is."""
    tenant: Tenant = request.scope.get("state", {}).get("tenant", ANYONE)
    return tenant


class AccessMiddleware:
    """Lets in who has a key, and says in each response what the key's tenant may still use."""

    def __init__(
        self, app: ASGIApp, tenants: Tenants, allowances: Allowances, open_paths: Collection[str]
    ) -> None:
        self._app = app
        self._tenants = tenants
        self._allowances = allowances
        self._open = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the exchange on, or answers 401 in OpenAI's shape with a challenge (RFC 6750, section 3)."""
        if scope["type"] != "http" or scope["path"] in self._open:
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("authorization")
        match = None if given is None else _BEARER.fullmatch(given)
        tenant = None if match is None else self._tenants.of(match[1])
        if tenant is None:
            refusal = error_response(_refusal(given is not None, match is not None))
            challenge = _CHALLENGE if match is None else f'{_CHALLENGE}, error="invalid_token"'
            refusal.headers["www-authenticate"] = challenge
            await refusal(scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, self._telling(tenant, send))

    def _telling(self, tenant: Tenant, send: Send) -> Send:
        """`send`, with what is left to `tenant` in the response's headers."""
        allowance = self._allowances.of(tenant)
        if not allowance.limited:
            return send

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *allowance.headers()]
            await send(message)

        return told


def _refusal(given: bool, readable: bool) -> RequestError:
    if not given:
        said = "this server needs an API key; send it as `Authorization: Bearer KEY`"
    elif not readable:
        said = "the Authorization header holds no API key; send it as `Authorization: Bearer KEY`"
    else:
        said = "the API key is not one of this server's"
    return RequestError(said, code="invalid_api_key")


def cors(origins: Sequence[str]) -> Middleware:
    """Lets pages of `origins` (`*`: all) read answers. Preflights are answered before anybody asks for a key.

    No cookies are ever looked at, so credentials need not be allowed: a key travels in a header, which the preflight permits.
    """
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=("GET", "HEAD", "POST"),
        allow_headers=("*",),
        expose_headers=_EXPOSED,
    )
