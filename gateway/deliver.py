"""Brings the generations of one request to its client, streamed or whole, and aborts them when the client leaves.

Knows streams, answers and ASGI; knows nothing of request bodies. Before the first byte a failure is an HTTP status; after it,
an event, and then no `[DONE]`. A failure of one choice is a failure of the answer.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import anyio
from msgspec import UNSET, Struct
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.core.errors import ServeError
from engine.executor import TokenLogprobs
from engine.requests import Delta, FinishReason
from gateway.answers import Answer, ChunkUsage, Part, text_of
from gateway.config import GatewayConfig
from gateway.connection import connection_of
from gateway.errors import describe, error_response
from gateway.schemas import ENCODER, PromptDetails, StreamOptions, Usage
from gateway.sse import DONE, EventWriter, TextEvent, event
from gateway.streams import Exchange, OpenStreams

CLIENT_CLOSED: Final = 499
"""Status in our own records for a client that left before the answer; nobody receives it."""


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
    """An ASGI response. Owns its exchanges: released when the response has ended, however it ended.

    Deltas are taken and written where the engine tells of them; the response's own task waits for the client to leave meanwhile.
    """

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
        self._waiting = anyio.CancelScope()
        """Is cancelled when the answer is complete, or cannot go on."""
        self._failure: Exception | None = None
        """What cannot be said in the answer."""
        self._opened: set[int] = set()
        self._offsets: dict[int, int] = {}
        self._plain: dict[int, TextEvent] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer, or the error in its place."""
        try:
            if self._form.streamed:
                await self._send_stream(scope, receive, send)
            else:
                await self._send_whole(scope, receive, send)
        except ServeError as error:
            await error_response(error)(scope, receive, send)
        finally:
            self._release()

    def _release(self) -> None:
        for exchange in self._exchanges:
            exchange.stream.listen(None)
            self._streams.release(exchange)

    async def _until_over(self, take_in: Callable[[int], None], receive: Receive) -> bool:
        """Calls `take_in` for each exchange that has news until `_waiting` is cancelled: True, or the client has left: False.

        Raises:
            Exception: the failure that was noted.
        """
        with self._waiting:
            for place, exchange in enumerate(self._exchanges):
                exchange.stream.listen(partial(self._guarded, take_in, place))
                self._guarded(take_in, place)
            await _gone(receive)
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def _guarded(self, take_in: Callable[[int], None], place: int) -> None:
        """Whoever calls is not to suffer from what goes wrong in this answer."""
        try:
            take_in(place)
        except Exception as error:
            self._end(error)

    def _end(self, failure: Exception | None = None) -> None:
        """The answer ends here."""
        self._failure = failure
        self._waiting.cancel()
        for exchange in self._exchanges:
            exchange.stream.listen(None)

    def _note(self, exchange: Exchange, delta: Delta) -> ServeError | None:
        """Takes note of what was read; why it is no good end, if it is none."""
        self._streams.heard(exchange, delta)
        if delta.finish is None:
            return None
        self._num_open -= 1
        return self._streams.failure(exchange, delta)

    # -- whole -------------------------------------------------------------------------------------------------

    async def _send_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        choices = [[_Choice() for _ in range(each.num_choices)] for each in self._exchanges]

        def take_in(place: int) -> None:
            exchange = self._exchanges[place]
            while (delta := exchange.stream.take()) is not None:
                failure = self._note(exchange, delta)
                choices[place][delta.index].take(delta)
                if failure is not None or self._num_open == 0:
                    self._end(failure)
                    return

        if await self._until_over(take_in, receive):
            body = self._answer.whole(self._parts(choices), self._usage())
            await Response(ENCODER.encode(body), media_type="application/json")(
                scope, receive, send
            )

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

    async def _send_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = connection_of(scope)

        def stall() -> None:
            self._release()
            if connection is None:
                self._end()
            else:
                connection.reset()

        def resume() -> None:
            for place in range(len(self._exchanges)):
                self._guarded(write, place)

        def begin() -> None:
            if writer.writable and not writer.started:
                writer.start()
                if opening := self._opening(0):
                    writer.write(opening)

        writer = EventWriter(connection, send, self._config, resume, stall)
        write = partial(self._write, writer)
        beginning = asyncio.get_running_loop().call_later(self._config.first_byte_s, begin)
        try:
            if await self._until_over(write, receive):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            beginning.cancel()
            writer.close()

    def _write(self, writer: EventWriter, place: int) -> None:
        """Writes what there is of an exchange if the client takes it: all that waited, as one chunk."""
        if not writer.writable:
            return
        exchange = self._exchanges[place]
        events = b""
        while (delta := exchange.stream.take()) is not None:
            failure = self._note(exchange, delta)
            if failure is not None and not writer.started and not events:
                self._end(failure)
                return
            events += self._events(place, delta, failure)
            if failure is not None or self._num_open == 0:
                writer.write(events)
                self._end()
                return
        if events:
            writer.write(events)

    def _events(self, place: int, delta: Delta, failure: ServeError | None) -> bytes:
        """What the client is told of a delta; after the last one, the end."""
        index = place * self._form.num_choices + delta.index
        if delta.finish is None and index in self._plain:
            return self._plain[index].fill(delta.text) if delta.text else b""
        events = b""
        if delta.text or (delta.finish is not None and failure is None):
            events = self._opening(index)
            part = self._part(index, delta)
            events += event(self._answer.chunk(part, self._chunk_usage()))
            if not self._form.logprobs and not self._running_usage:
                self._plain[index] = self._text_event(index)
        if failure is not None:
            return events + event(describe(failure)[1])
        if self._num_open:
            return events
        if self._with_usage:
            events += event(self._answer.usage_chunk(self._usage()))
        return events + DONE

    def _text_event(self, index: int) -> TextEvent:
        return TextEvent(lambda text: self._answer.chunk(Part(index, text), self._chunk_usage()))

    def _opening(self, index: int) -> bytes:
        """What comes before the first text of choice `index`; nothing the second time."""
        if index in self._opened:
            return b""
        self._opened.add(index)
        opening = self._answer.opening(index, self._chunk_usage())
        head = b"" if opening is None else event(opening)
        echo = self._form.echo(index // self._form.num_choices)
        if echo:
            head += event(self._answer.chunk(Part(index, echo), self._chunk_usage()))
        return head

    def _part(self, index: int, delta: Delta) -> Part:
        finish = delta.finish if delta.finish in (FinishReason.STOP, FinishReason.LENGTH) else None
        if not self._form.logprobs:
            return Part(index, delta.text, finish)
        offset = self._offsets.get(index, 0)
        texts = [text_of(self._form.pieces, token) for token, _ in delta.logprobs]
        self._offsets[index] = offset + sum(map(len, texts))
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


async def _gone(receive: Receive) -> None:
    """Returns when the client has closed its connection, or lost it."""
    while (await receive())["type"] != "http.disconnect":
        pass
