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
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.core.errors import RequestError, ServeError
from gateway.answers import Answer, ChatAnswer, CompletionAnswer
from gateway.config import GatewayConfig
from gateway.connection import reset
from gateway.deliver import CLIENT_CLOSED, Delivery, Form
from gateway.engine import Served
from gateway.errors import ShuttingDownError, on_bug, on_http_error, on_serve_error
from gateway.feed import LiveFeed, own_version
from gateway.fields import Body, read_body
from gateway.logs import RequestLog
from gateway.metrics import Metrics
from gateway.middleware import RequestIdMiddleware
from gateway.page import Page
from gateway.schemas import (
    ENCODER,
    Cancelled,
    ChatRequest,
    CompletionRequest,
    Detokenized,
    DetokenizeRequest,
    Health,
    Model,
    ModelList,
    Ready,
    Tokenized,
    TokenizeRequest,
    Version,
)
from gateway.sse import own_the_shutdown, send_events
from gateway.streams import Exchange, OpenStreams
from gateway.translate import (
    Ask,
    chat_ask,
    chat_ids,
    check_model,
    checked_ids,
    completion_ask,
    text_ids,
)


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
    page = Page()
    metrics = Metrics(served.engine, streams)
    served.engine.observe(metrics)
    streams.ledgers += [metrics, RequestLog()]

    async def on_error(request: Request, error: Exception) -> Response:
        if isinstance(error, ServeError):
            metrics.shed(error.code)
        return await on_serve_error(request, error)

    routes = [
        Route("/health", edge.health, methods=["GET"]),
        Route("/ready", edge.ready, methods=["GET"]),
        Route("/version", edge.version, methods=["GET"]),
        Route("/metrics", metrics.endpoint, methods=["GET"]),
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
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(metrics.counting, paths=paths),
            Middleware(RequestIdMiddleware, new_id=new_id),
        ],
        exception_handlers={
            ServeError: on_error,
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
        self._feed = LiveFeed(served.engine, streams, config)

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

    async def ready(self, request: Request) -> Response:
        """Whether new requests are taken: 503 while the server is ending."""
        if self._streams.draining:
            raise ShuttingDownError("the server is shutting down and takes no new requests")
        return _json(Ready(self._engine.model_name))

    async def version(self, request: Request) -> Response:
        """Of this program."""
        return _json(Version(own_version()))

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
        answer = CompletionAnswer(
            self._label("cmpl"),
            int(self._clock()),
            self._engine.model_name,
            self._served.codec.pieces,
        )
        return self._deliver(body, ask, answer, "completions")

    async def chat_completions(self, request: Request) -> ASGIApp:
        """Answers a chat."""
        body = await self._body(request, ChatRequest)
        ask = await chat_ask(body, self._served, self._config)
        answer = ChatAnswer(
            self._label("chatcmpl"),
            int(self._clock()),
            self._engine.model_name,
            self._served.codec.pieces,
        )
        return self._deliver(body, ask, answer, "chat")

    async def cancel(self, request: Request) -> Response:
        """Ends an answer that is being generated, by its id."""
        label = request.path_params["label"]
        if not self._streams.cancel(label):
            raise RequestError(
                f"no answer with the id `{label[:200]}` is being generated", code="not_found"
            )
        return _json(Cancelled(label))

    async def live(self, request: Request) -> ASGIApp:
        """Feeds the live page."""
        self._feed.check_room()

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            if not await send_events(self._feed.events(), self._config, scope, receive, send):
                reset(scope)

        return respond

    def _deliver(
        self, body: CompletionRequest | ChatRequest, ask: Ask, answer: Answer, endpoint: str
    ) -> ASGIApp:
        form = Form(
            streamed=bool(body.stream),
            options=body.stream_options,
            num_choices=ask.num_choices,
            logprobs=body.logprobs is not None and body.logprobs is not False,
            echoes=ask.echoes,
            pieces=self._served.codec.pieces,
        )
        exchanges: list[Exchange] = []
        try:
            for generation in ask.generations:
                exchanges.append(self._streams.open(generation, answer.id, endpoint))
        except ServeError as error:
            for exchange in exchanges:
                self._streams.release(exchange)
            if isinstance(error, RequestError):
                raise ask.named(error, len(exchanges)) from None
            raise
        return Delivery(exchanges, answer, self._streams, self._config, form)

    async def tokenize(self, request: Request) -> Response:
        """The token ids of a prompt or a chat."""
        body = await self._body(request, TokenizeRequest)
        check_model(body.model, self._engine)
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("send one of `prompt` and `messages`", param="prompt")
        if body.messages is not None:
            ids = await chat_ids(body.messages, self._served)
        else:
            assert body.prompt is not None
            ids = await text_ids(body.prompt, self._served)
        return _json(Tokenized(len(ids), self._engine.max_context, ids.tolist()))

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        body = await self._body(request, DetokenizeRequest)
        check_model(body.model, self._engine)
        codec = self._served.codec
        ids = checked_ids(body.tokens, "tokens", codec.vocab_size) if body.tokens else ()
        return _json(Detokenized(codec.decode(ids)))

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
