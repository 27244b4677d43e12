"""Brings one generation to its client, streamed or whole, and aborts it when the client leaves.

Knows streams, answers and ASGI; knows nothing of request bodies. Before the first byte a failure is an HTTP status; after it,
an event, and then no `[DONE]`.
"""

from collections.abc import AsyncIterator
from typing import Final

import anyio
from msgspec import UNSET
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.core.errors import ServeError
from engine.requests import Delta
from gateway.answers import Answer, ChunkUsage
from gateway.config import GatewayConfig
from gateway.connection import reset
from gateway.errors import describe, error_response
from gateway.schemas import ENCODER, StreamOptions, Usage
from gateway.sse import DONE, event, send_events
from gateway.streams import Exchange, OpenStreams

CLIENT_CLOSED: Final = 499
"""Status in our own records for a client that left before the answer; nobody receives it."""


class Delivery:
    """An ASGI response. Owns its exchange: released when the response has ended, however it ended."""

    def __init__(
        self,
        exchange: Exchange,
        answer: Answer,
        streams: OpenStreams,
        config: GatewayConfig,
        *,
        streamed: bool,
        options: StreamOptions | None,
    ) -> None:
        self._exchange = exchange
        self._stream = exchange.stream
        self._answer = answer
        self._streams = streams
        self._config = config
        self._streamed = streamed
        self._with_usage = bool(options and options.include_usage)
        self._running_usage = self._with_usage and bool(options and options.continuous_usage_stats)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer, or the error in its place."""
        try:
            if self._streamed:
                await self._send_stream(scope, receive, send)
            else:
                await self._send_whole(scope, receive, send)
        except ServeError as error:
            await error_response(error)(scope, receive, send)
        finally:
            self._streams.release(self._exchange)

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        texts: list[str] = []
        last: Delta | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_when_gone, receive, group.cancel_scope)
            async for delta in self._stream:
                self._streams.heard(self._exchange, delta)
                texts.append(delta.text)
                last = delta
            group.cancel_scope.cancel()
        if last is None or last.finish is None:
            return  # the client has gone
        failure = self._streams.failure(self._exchange, last)
        if failure is not None:
            raise failure
        body = self._answer.whole("".join(texts), last.finish, self._usage())
        await Response(ENCODER.encode(body), media_type="application/json")(scope, receive, send)

    async def _send_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        first: Delta | None = None
        gone = True
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_when_gone, receive, group.cancel_scope)
            with anyio.move_on_after(self._config.first_byte_s):
                first = await anext(self._stream)
            gone = False
            group.cancel_scope.cancel()
        if gone:
            return
        failure = None if first is None else self._streams.failure(self._exchange, first)
        if failure is not None:
            raise failure
        if not await send_events(self._events(first), self._config, scope, receive, send):
            self._streams.release(self._exchange)
            if reset(scope):
                await _gone(receive)

    async def _events(self, delta: Delta | None) -> AsyncIterator[bytes]:
        """The stream from its first byte on; `delta` is the first delta if it has come."""
        opening = self._answer.opening(self._chunk_usage())
        head = b"" if opening is None else event(opening)
        if delta is None:
            if head:
                yield head
            head = b""
            delta = await anext(self._stream)
        self._streams.heard(self._exchange, delta)
        while delta.finish is None:
            if delta.text:
                yield head + event(self._answer.chunk(delta.text, None, self._chunk_usage()))
                head = b""
            delta = await anext(self._stream)
            self._streams.heard(self._exchange, delta)
        failure = self._streams.failure(self._exchange, delta)
        if failure is not None:
            rest = (
                event(self._answer.chunk(delta.text, None, self._chunk_usage()))
                if delta.text
                else b""
            )
            yield head + rest + event(describe(failure)[1])
            return
        tail = event(self._answer.chunk(delta.text, delta.finish, self._chunk_usage()))
        if self._with_usage:
            tail += event(self._answer.usage_chunk(self._usage()))
        yield head + tail + DONE

    def _usage(self) -> Usage:
        prompt, generated = self._stream.num_prompt, self._exchange.num_generated
        return Usage(prompt, generated, prompt + generated)

    def _chunk_usage(self) -> ChunkUsage:
        if self._running_usage:
            return self._usage()
        return None if self._with_usage else UNSET


async def _gone(receive: Receive) -> None:
    """Returns when the client has closed its connection, or lost it."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    await _gone(receive)
    scope.cancel()
