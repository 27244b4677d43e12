"""What each endpoint does: from a request to its answer, one method each. Calls the other modules in order and decides nothing itself."""

from collections.abc import Callable
from functools import cache

import anyio
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.core.errors import RequestError
from gateway.access import tenant_of
from gateway.allowance import Allowances
from gateway.answers import Answer, ChatAnswer, CompletionAnswer
from gateway.config import GatewayConfig
from gateway.connection import connection_of
from gateway.deliver import Delivery, Form
from gateway.engine import Served
from gateway.errors import ShuttingDownError
from gateway.feed import LiveFeed, own_version
from gateway.fields import Body, read_body
from gateway.media import check_declared_json
from gateway.openapi import document
from gateway.prompts import chat_ids, checked_ids, off_loop, text_ids
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
from gateway.sse import send_events
from gateway.streams import Exchange, OpenStreams
from gateway.terms import Terms
from gateway.translate import Ask, chat_ask, completion_ask


class Handlers:
    """The handlers, with what they share."""

    def __init__(
        self,
        config: GatewayConfig,
        served: Served,
        streams: OpenStreams,
        allowances: Allowances,
        clock: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        self._config = config
        self._served = served
        self._engine = served.engine
        self._streams = streams
        self._allowances = allowances
        self._clock = clock
        self._new_id = new_id
        self._started = int(clock())
        self._feed = LiveFeed(served.engine, streams, config)
        self._document = cache(
            lambda: document(guarded=served.tenants.guarded, guard_metrics=config.guard_metrics)
        )

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

    async def openapi(self, request: Request) -> Response:
        """The description of all of this."""
        return Response(self._document(), media_type="application/json")

    async def models(self, request: Request) -> Response:
        """The one model, as a list."""
        return _json(ModelList((self._card(),)))

    async def model(self, request: Request) -> Response:
        """The one model, by name."""
        self._terms(request).check_model(request.path_params["model"])
        return _json(self._card())

    async def completions(self, request: Request) -> ASGIApp:
        """Continues a text."""
        terms = self._counted(request)
        body = await self._body(request, CompletionRequest)
        ask = await completion_ask(body, terms)
        answer = CompletionAnswer(
            self._label("cmpl"),
            int(self._clock()),
            self._engine.model_name,
            self._served.codec.pieces,
        )
        return self._deliver(body, ask, answer, terms, "completions")

    async def chat_completions(self, request: Request) -> ASGIApp:
        """Answers a chat."""
        terms = self._counted(request)
        body = await self._body(request, ChatRequest)
        ask = await chat_ask(body, terms)
        answer = ChatAnswer(
            self._label("chatcmpl"),
            int(self._clock()),
            self._engine.model_name,
            self._served.codec.pieces,
        )
        return self._deliver(body, ask, answer, terms, "chat")

    async def cancel(self, request: Request) -> Response:
        """Ends an answer that is being generated, by its id; another tenant's is as if there were none."""
        label = request.path_params["label"]
        if not self._streams.cancel(label, tenant_of(request).name):
            raise RequestError(
                f"no answer with the id `{label[:200]}` is being generated", code="not_found"
            )
        return _json(Cancelled(label))

    async def live(self, request: Request) -> ASGIApp:
        """Feeds the live page."""
        self._feed.check_room()

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            with self._feed.seat():
                taken = await send_events(self._feed.events(), self._config, scope, receive, send)
            connection = connection_of(scope)
            if not taken and connection is not None:
                connection.reset()

        return respond

    def _deliver(
        self,
        body: CompletionRequest | ChatRequest,
        ask: Ask,
        answer: Answer,
        terms: Terms,
        endpoint: str,
    ) -> ASGIApp:
        form = Form(
            streamed=bool(body.stream),
            options=body.stream_options,
            num_choices=ask.num_choices,
            logprobs=body.logprobs is not None and body.logprobs is not False,
            echoes=ask.echoes,
            pieces=self._served.codec.pieces,
        )
        allowance = self._allowances.of(terms.tenant)
        allowance.take_tokens(ask.generations)
        exchanges: list[Exchange] = []
        try:
            for generation in ask.generations:
                exchanges.append(self._streams.open(generation, answer.id, endpoint))
        except Exception as error:
            for exchange in exchanges:
                self._streams.release(exchange)
            allowance.give_back(ask.generations[len(exchanges) :])
            if isinstance(error, RequestError):
                raise ask.named(error, len(exchanges)) from None
            raise
        return Delivery(exchanges, answer, self._streams, self._config, form)

    async def tokenize(self, request: Request) -> Response:
        """The token ids of a prompt or a chat."""
        terms = self._counted(request)
        body = await self._body(request, TokenizeRequest)
        terms.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("send one of `prompt` and `messages`", param="prompt")
        if body.messages is not None:
            ids = await chat_ids(body.messages, terms)
        else:
            assert body.prompt is not None
            ids = await text_ids(body.prompt, terms)
        return _json(Tokenized(len(ids), terms.max_context, ids.tolist()))

    async def detokenize(self, request: Request) -> Response:
        """The text of token ids."""
        terms = self._counted(request)
        body = await self._body(request, DetokenizeRequest)
        terms.check_model(body.model)
        codec = self._served.codec
        ids = checked_ids(body.tokens, "tokens", codec.vocab_size) if body.tokens else ()
        return _json(Detokenized(await off_loop(len(ids), lambda: codec.decode(ids))))

    def _terms(self, request: Request) -> Terms:
        return Terms(self._served, self._config, tenant_of(request))

    def _counted(self, request: Request) -> Terms:
        """The terms of a request that counts against its tenant's requests a minute."""
        terms = self._terms(request)
        self._allowances.of(terms.tenant).take_request()
        return terms

    async def _body(self, request: Request, kind: type[Body]) -> Body:
        """The request's body as a `kind`, refused where it is declared to be something else, and as soon as it is too large or too late."""
        check_declared_json(request.headers)
        limit = self._config.max_body_bytes
        data = bytearray()
        with anyio.move_on_after(self._config.body_s) as late:
            async for piece in request.stream():
                data += piece
                if len(data) > limit:
                    raise RequestError(
                        f"the body is larger than {limit} bytes", code="body_too_large"
                    )
        if late.cancelled_caught:
            raise RequestError(
                f"the body did not arrive within {self._config.body_s:g} s; send it faster",
                code="request_timeout",
            )
        return read_body(bytes(data), kind)

    def _label(self, prefix: str) -> str:
        return f"{prefix}-{self._new_id()}"

    def _card(self) -> Model:
        return Model(self._engine.model_name, self._started, self._engine.max_context)


def _json(body: Struct) -> Response:
    return Response(ENCODER.encode(body), media_type="application/json")
