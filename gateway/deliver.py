"""Brings the generations of one request to its client, streamed or whole, and aborts them when the client leaves.

Knows streams, answers and ASGI; knows nothing of request bodies. Before the first byte a failure is an HTTP status; after it,
an event, and then no `[DONE]`. A failure of one choice is a failure of the answer.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Final

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from msgspec import UNSET, Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.core.errors import ServeError
from engine.executor import TokenLogprobs
from engine.requests import Delta, FinishReason
from gateway.answers import Answer, ChunkUsage, Part, text_of
from gateway.config import GatewayConfig
from gateway.connection import reset
from gateway.errors import describe, error_response
from gateway.schemas import ENCODER, PromptDetails, StreamOptions, Usage
from gateway.sse import DONE, event, send_events
from gateway.streams import Exchange, OpenStreams

CLIENT_CLOSED: Final = 499
"""Status in our own records for a client that left before the answer; nobody receives it."""

Heard = tuple[int, Delta]
"""Place of an exchange in the answer, and what was read of it."""


class Form(Struct, frozen=True, kw_only=True):
    """How the client wants its answer."""

    streamed: bool
    options: StreamOptions | None = None
    num_choices: int = 1
    """Choices of each exchange that are delivered."""
    logprobs: bool = False
    echoes: tuple[str, ...] = ()
    """What the choices of each exchange begin with; empty: with nothing."""
    pieces: Sequence[bytes] = ()
    """Bytes of each token, to count offsets by."""

    def echo(self, place: int) -> str:
        """What the choices of exchange `place` begin with."""
        return self.echoes[place] if self.echoes else ""


class Delivery:
    """An ASGI response. Owns its exchanges: released when the response has ended, however it ended."""

    def __init__(
        self,
        exchanges: Sequence[Exchange],
        answer: Answer,
        streams: OpenStreams,
        config: GatewayConfig,
        form: Form,
    ) -> None:
        self._exchanges = exchanges
        self._answer = answer
        self._streams = streams
        self._config = config
        self._form = form
        self._num_open = sum(each.num_choices for each in exchanges)
        options = form.options
        self._with_usage = bool(options and options.include_usage)
        self._running_usage = self._with_usage and bool(options and options.continuous_usage_stats)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer, or the error in its place."""
        try:
            async with AsyncExitStack() as stack:
                heard = await self._listen(stack)
                if self._form.streamed:
                    await self._send_stream(heard, scope, receive, send)
                else:
                    await self._send_whole(heard, scope, receive, send)
        except ServeError as error:
            await error_response(error)(scope, receive, send)
        finally:
            self._release()

    def _release(self) -> None:
        for exchange in self._exchanges:
            self._streams.release(exchange)

    async def _listen(self, stack: AsyncExitStack) -> AsyncIterator[Heard]:
        """All deltas of all exchanges; tasks that this takes live as long as `stack`."""
        if len(self._exchanges) == 1:
            return _Alone(self._exchanges[0])
        group = await stack.enter_async_context(anyio.create_task_group())
        sender, receiver = anyio.create_memory_object_stream[Heard](0)
        for place, exchange in enumerate(self._exchanges):
            group.start_soon(_pass_on, place, exchange, sender.clone())
        sender.close()
        stack.callback(group.cancel_scope.cancel)
        await stack.enter_async_context(receiver)
        return receiver

    def _note(self, heard: Heard) -> tuple[Exchange, Delta]:
        """Takes note of what was read.

        Raises:
            ServeError: the choice ended as it should not have.
        """
        place, delta = heard
        exchange = self._exchanges[place]
        self._streams.heard(exchange, delta)
        if delta.finish is not None:
            self._num_open -= 1
        return exchange, delta

    # -- whole -------------------------------------------------------------------------------------------------

    async def _send_whole(
        self, heard: AsyncIterator[Heard], scope: Scope, receive: Receive, send: Send
    ) -> None:
        choices = [[_Choice() for _ in range(each.num_choices)] for each in self._exchanges]
        failure: ServeError | None = None
        gone = True
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_when_gone, receive, group.cancel_scope)
            async for each in heard:
                exchange, delta = self._note(each)
                failure = self._streams.failure(exchange, delta)
                choices[each[0]][delta.index].take(delta)
                if failure is not None or self._num_open == 0:
                    break
            gone = False
            group.cancel_scope.cancel()
        if gone:
            return
        if failure is not None:
            raise failure
        body = self._answer.whole(self._parts(choices), self._usage())
        await Response(ENCODER.encode(body), media_type="application/json")(scope, receive, send)

    def _parts(self, choices: list[list["_Choice"]]) -> list[Part]:
        parts = []
        num = self._form.num_choices
        for place, generated in enumerate(choices):
            for i, choice in enumerate(best(generated, num)):
                said = tuple(choice.said) if self._form.logprobs else None
                text = self._form.echo(place) + "".join(choice.texts)
                parts.append(Part(place * num + i, text, choice.finish, said))
        return parts

    # -- streamed ----------------------------------------------------------------------------------------------

    async def _send_stream(
        self, heard: AsyncIterator[Heard], scope: Scope, receive: Receive, send: Send
    ) -> None:
        first: Heard | None = None
        gone = True
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_when_gone, receive, group.cancel_scope)
            with anyio.move_on_after(self._config.first_byte_s):
                first = await anext(heard)
            gone = False
            group.cancel_scope.cancel()
        if gone:
            return
        if first is not None:
            failure = self._streams.failure(self._exchanges[first[0]], first[1])
            if failure is not None:
                self._note(first)
                raise failure
        async with aclosing(self._events(heard, first)) as events:
            if not await send_events(events, self._config, scope, receive, send):
                self._release()
                if reset(scope):
                    await _gone(receive)

    async def _events(
        self, heard: AsyncIterator[Heard], first: Heard | None
    ) -> AsyncGenerator[bytes]:
        """The stream from its first byte on; `first` is the first delta if it has come."""
        opened: set[int] = set()
        offsets: dict[int, int] = {}
        head = b""
        if first is None:
            head = self._opening(0, opened)
            if head:
                yield head
                head = b""
            first = await anext(heard)
        each = first
        while True:
            exchange, delta = self._note(each)
            index = each[0] * self._form.num_choices + delta.index
            failure = self._streams.failure(exchange, delta)
            wanted = delta.text or (delta.finish is not None and failure is None)
            if wanted:
                head += self._opening(index, opened)
                head += event(
                    self._answer.chunk(self._part(index, delta, offsets), self._chunk_usage())
                )
            if failure is not None:
                yield head + event(describe(failure)[1])
                return
            if self._num_open == 0:
                break
            if head:
                yield head
                head = b""
            each = await anext(heard)
        if self._with_usage:
            head += event(self._answer.usage_chunk(self._usage()))
        yield head + DONE

    def _opening(self, index: int, opened: set[int]) -> bytes:
        """What comes before the first text of choice `index`; nothing the second time."""
        if index in opened:
            return b""
        opened.add(index)
        opening = self._answer.opening(index, self._chunk_usage())
        head = b"" if opening is None else event(opening)
        echo = self._form.echo(index // self._form.num_choices)
        if echo:
            head += event(self._answer.chunk(Part(index, echo), self._chunk_usage()))
        return head

    def _part(self, index: int, delta: Delta, offsets: dict[int, int]) -> Part:
        finish = delta.finish if delta.finish in (FinishReason.STOP, FinishReason.LENGTH) else None
        if not self._form.logprobs:
            return Part(index, delta.text, finish)
        offset = offsets.get(index, 0)
        texts = [text_of(self._form.pieces, token) for token, _ in delta.logprobs]
        offsets[index] = offset + sum(map(len, texts))
        return Part(index, delta.text, finish, delta.logprobs, offset)

    # -- counts ------------------------------------------------------------------------------------------------

    def _usage(self) -> Usage:
        prompt = sum(each.stream.num_prompt for each in self._exchanges)
        cached = sum(each.stream.num_cached for each in self._exchanges)
        generated = sum(each.num_generated for each in self._exchanges)
        return Usage(prompt, generated, prompt + generated, PromptDetails(cached))

    def _chunk_usage(self) -> ChunkUsage:
        if self._running_usage:
            return self._usage()
        return None if self._with_usage else UNSET


class _Choice:
    """What came of one choice."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.said: list[tuple[int, TokenLogprobs]] = []
        self.finish: FinishReason | None = None

    def take(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.said.extend(delta.logprobs)
        self.finish = delta.finish


def best(choices: Sequence[_Choice], count: int) -> Sequence[_Choice]:
    """The `count` choices with the highest log-probability a token, best first; all as they are where none is left out."""
    if count == len(choices):
        return choices

    def score(choice: _Choice) -> float:
        return sum(known.logprob for _, known in choice.said) / max(1, len(choice.said))

    return sorted(choices, key=score, reverse=True)[:count]


class _Alone:
    """Deltas of one exchange, with its place."""

    def __init__(self, exchange: Exchange) -> None:
        self._stream = exchange.stream

    def __aiter__(self) -> "_Alone":
        return self

    async def __anext__(self) -> Heard:
        return 0, await anext(self._stream)


async def _pass_on(place: int, exchange: Exchange, sender: MemoryObjectSendStream[Heard]) -> None:
    """One exchange's way into the common stream, which has no buffer: what is not taken merges where it was made."""
    async with sender:
        async for delta in exchange.stream:
            await sender.send((place, delta))


async def _gone(receive: Receive) -> None:
    """Returns when the client has closed its connection, or lost it."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    await _gone(receive)
    scope.cancel()
