"""The application: routes, and what every exchange passes through on the way to them. Wires the other modules."""

import time
import uuid
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from engine.core.errors import ServeError
from gateway.access import OPEN_PATHS, AccessMiddleware, cors, tenant_of
from gateway.allowance import Allowances
from gateway.config import GatewayConfig
from gateway.deliver import CLIENT_CLOSED
from gateway.engine import Served
from gateway.errors import on_bug, on_http_error, on_serve_error
from gateway.handlers import Handlers
from gateway.logs import RequestLog
from gateway.metrics import Metrics
from gateway.middleware import HeaderLimitMiddleware, RequestIdMiddleware
from gateway.page import Page
from gateway.sse import own_the_shutdown
from gateway.streams import OpenStreams
from gateway.tenants import ANYONE


def _random_id() -> str:
    return uuid.uuid4().hex


def create_app(
    config: GatewayConfig,
    served: Served,
    *,
    streams: OpenStreams | None = None,
    clock: Callable[[], float] = time.time,
    new_id: Callable[[], str] = _random_id,
) -> Starlette:
    """The ASGI application that serves `served`.

    Args:
        config: limits and timeouts.
        served: its engine must be running by the time requests come.
        streams: where open streams are kept, for a server that wants to drain them.
        clock: seconds since 1970, for `created` fields.
        new_id: a fresh label for answers and request ids.
    """
    own_the_shutdown()
    if streams is None:
        streams = OpenStreams(served.engine)
    tenants = served.tenants
    allowances = Allowances(tenants.all or (ANYONE,))
    edge = Handlers(config, served, streams, allowances, clock, new_id)
    page = Page()
    metrics = Metrics(served.engine, streams, [tenant.name for tenant in tenants.all])
    served.engine.observe(metrics)

    def renew() -> None:
        allowances.renew(tenants.all)
        metrics.renew([tenant.name for tenant in tenants.all])

    tenants.on_renewal.append(renew)
    streams.ledgers += [metrics, allowances, RequestLog()]

    async def on_error(request: Request, error: Exception) -> Response:
        if isinstance(error, ServeError):
            metrics.shed(error.code, tenant_of(request).name)
        return await on_serve_error(request, error)

    routes = [
        Route("/health", edge.health, methods=["GET"]),
        Route("/ready", edge.ready, methods=["GET"]),
        Route("/version", edge.version, methods=["GET"]),
        Route("/metrics", metrics.endpoint, methods=["GET"]),
        Route("/openapi.json", edge.openapi, methods=["GET"]),
        Route("/", page.document, methods=["GET"]),
        Route("/page.css", page.style, methods=["GET"]),
        Route("/page.js", page.script, methods=["GET"]),
        Route("/live", edge.live, methods=["GET"]),
        Route("/tokenize", edge.tokenize, methods=["POST"]),
        Route("/detokenize", edge.detokenize, methods=["POST"]),
        Route("/v1/requests/{label}/cancel", edge.cancel, methods=["POST"]),
        Route("/v1/models", edge.models, methods=["GET"]),
        Route("/v1/models/{model:path}", edge.model, methods=["GET"]),
        Route("/v1/completions", edge.completions, methods=["POST"]),
        Route("/v1/chat/completions", edge.chat_completions, methods=["POST"]),
    ]
    paths = {route.endpoint: route.path for route in routes}
    middleware = [
        Middleware(metrics.counting, paths=paths),
        Middleware(RequestIdMiddleware, new_id=new_id),
        Middleware(HeaderLimitMiddleware, limit=config.max_header_bytes),
    ]
    if config.cors_origins:
        middleware.append(cors(config.cors_origins))
    if tenants.guarded:
        open_paths = OPEN_PATHS - {"/metrics"} if config.guard_metrics else OPEN_PATHS
        middleware.append(
            Middleware(
                AccessMiddleware, tenants=tenants, allowances=allowances, open_paths=open_paths
            )
        )
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            ServeError: on_error,
            HTTPException: on_http_error,
            ClientDisconnect: _on_disconnect,
            Exception: on_bug,
        },
    )
    app.router.redirect_slashes = False  # whither would be for the Host header to say
    return app


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Ends a request whose client left while it was sending the body."""
    return Response(status_code=CLIENT_CLOSED)
