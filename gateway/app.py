"""The application: routes, and for each the way from body to answer. Wires the other modules and decides nothing itself."""

import time
import uuid
from collections.abc import Callable

from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from engine.core.errors import RequestError, ServeError
from gateway.answers import Answer, ChatAnswer, CompletionAnswer
from gateway.config import GatewayConfig
from gateway.deliver import CLIENT_CLOSED, Delivery
from gateway.engine import Served
from gateway.errors import on_bug, on_http_error, on_serve_error
from gateway.fields import Body, read_body
from gateway.middleware import RequestIdMiddleware
from gateway.schemas import (
    ENCODER,
    ChatRequest,
    CompletionRequest,
    GenerationFields,
    Health,
    Model,
    ModelList,
)
from gateway.sse import own_the_shutdown
from gateway.streams import OpenStreams
from gateway.translate import Ask, chat_ask, check_model, completion_ask


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
    edge = _Edge(config, served, streams, clock, new_id)
    return Starlette(
        routes=[
            Route("/health", edge.health, methods=["GET"]),
            Route("/v1/models", edge.models, methods=["GET"]),
            Route("/v1/models/{model:path}", edge.model, methods=["GET"]),
            Route("/v1/completions", edge.completions, methods=["POST"]),
            Route("/v1/chat/completions", edge.chat_completions, methods=["POST"]),
        ],
        middleware=[Middleware(RequestIdMiddleware, new_id=new_id)],
        exception_handlers={
            ServeError: on_serve_error,
            HTTPException: on_http_error,
            ClientDisconnect: _on_disconnect,
            Exception: on_bug,
        },
    )


class _Edge:
    """The handlers, with what they share."""

    def __init__(
        self,
        config: GatewayConfig,
        served: Served,
        streams: OpenStreams,
        clock: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        self._config = config
        self._served = served
        self._engine = served.engine
        self._streams = streams
        self._clock = clock
        self._new_id = new_id
        self._started = int(clock())

    async def health(self, request: Request) -> Response:
        """That the process serves, and how full it is."""
        memory = self._engine.memory()
        return _json(
            Health(
                status="draining" if self._streams.draining else "ok",
                model=self._engine.model_name,
                running=memory.num_running,
                waiting=memory.num_waiting,
                total_blocks=memory.total_blocks,
                free_blocks=memory.free_blocks + memory.cached_blocks,
            )
        )

    async def models(self, request: Request) -> Response:
        """The one model, as a list."""
        return _json(ModelList((self._card(),)))

    async def model(self, request: Request) -> Response:
        """The one model, by name."""
        check_model(request.path_params["model"], self._engine)
        return _json(self._card())

    async def completions(self, request: Request) -> ASGIApp:
        """Continues a text."""
        body = await self._body(request, CompletionRequest)
        ask = await completion_ask(body, self._served, self._config)
        answer = CompletionAnswer(self._label("cmpl"), int(self._clock()), self._engine.model_name)
        return self._deliver(body, ask, answer)

    async def chat_completions(self, request: Request) -> ASGIApp:
        """Answers a chat."""
        body = await self._body(request, ChatRequest)
        ask = await chat_ask(body, self._served, self._config)
        answer = ChatAnswer(self._label("chatcmpl"), int(self._clock()), self._engine.model_name)
        return self._deliver(body, ask, answer)

    def _deliver(self, body: GenerationFields, ask: Ask, answer: Answer) -> ASGIApp:
        try:
            stream = self._streams.open(ask.generation)
        except RequestError as error:
            raise ask.named(error) from None
        return Delivery(
            stream,
            answer,
            self._streams,
            self._config,
            streamed=bool(body.stream),
            options=body.stream_options,
        )

    async def _body(self, request: Request, kind: type[Body]) -> Body:
        """The request's body as a `kind`, refused as soon as it is too large."""
        limit = self._config.max_body_bytes
        data = bytearray()
        async for piece in request.stream():
            data += piece
            if len(data) > limit:
                raise RequestError(f"the body is larger than {limit} bytes", code="body_too_large")
        return read_body(bytes(data), kind)

    def _label(self, prefix: str) -> str:
        return f"{prefix}-{self._new_id()}"

    def _card(self) -> Model:
        return Model(self._engine.model_name, self._started, self._engine.max_context)


def _json(body: Struct) -> Response:
    return Response(ENCODER.encode(body), media_type="application/json")


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Ends a request whose client left while it was sending the body."""
    return Response(status_code=CLIENT_CLOSED)
