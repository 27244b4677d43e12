"""Stream: what one client reads of its generation, one merged delta at a time.

Knows tokens, text and one reader; knows no scheduler and no transport. The engine writes from the event loop, never
blocks, and never waits for the reader: what has not been read is merged into one pending `Delta` for each choice, so that a
slow reader gets fewer and larger pieces and costs no more memory than its answers.

There are two ways to read: to iterate, or to `listen` and then `take`. A listener is told after all of a step has been delivered, in the
same turn of the event loop, and so costs no switch of tasks.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from engine.beams import BeamStep, Hypotheses
from engine.core.ids import RequestId
from engine.executor import TokenLogprobs
from engine.requests import Delta, FinishReason, Generation


class Detokenizer(Protocol):
    """One choice's way from tokens to text."""

    def push(self, tokens: Sequence[int]) -> tuple[str, bool]:
        """Adds tokens: (text that may be sent now, whether a stop string was completed)."""
        ...

    def finish(self) -> str:
        """What was held back when the tokens ended."""
        ...


class Codec(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Tokens that end an answer and are never shown, unless the request ignores them."""
        ...

    def detokenizer(
        self, stop: tuple[str, ...], *, include_stop: bool, min_tokens: int
    ) -> Detokenizer:
        """A fresh one, which ends at the first of the strings in `stop` after `min_tokens` tokens, or after that string."""
        ...


class Stream:
    """An asynchronous iterator of `Delta`s of all choices, each with its `index`. For one reader.

    Of each choice exactly one delta has `finish` set, and it is that choice's last; the iteration ends when all choices have.
    """

    def __init__(
        self,
        request_id: RequestId,
        generation: Generation,
        codec: Codec,
        on_abort: Callable[["Stream"], None],
        announce: Callable[["Stream"], None],
    ) -> None:
        """`announce` is given the stream when it has news; its owner calls `tell` when all of a step has been delivered."""
        self.request_id = request_id
        self.num_prompt = len(generation.prompt)
        self.num_cached = 0
        """Prompt tokens that the prefix cache held when the request was first admitted."""
        self.generation = generation
        self._codec = codec
        self.choices = _choices(self, codec)
        """What the engine writes to, one for each sequence of the core's request."""
        self._on_abort = on_abort
        self._announce = announce
        self._ready: deque[Choice] = deque()
        self._num_open = generation.num_sequences
        self._told: Callable[[], None] | None = None
        self._announced = False

    def __aiter__(self) -> "Stream":
        """Itself."""
        return self

    async def __anext__(self) -> Delta:
        """What came of one choice since it was last read; waits until there is text or an end.

        Choices take turns. Waiting may be cancelled; nothing is lost by it.

        Raises:
            StopAsyncIteration: the last delta of every choice has been read.
            RuntimeError: another task is reading.
        """
        while (delta := self.take()) is None:
            if self.ended:
                raise StopAsyncIteration
            if self._told is not None:
                raise RuntimeError("a stream has one reader, and another task is reading this one")
            news = asyncio.get_running_loop().create_future()
            self._told = partial(_set, news)
            try:
                await news
            finally:
                self._told = None
        return delta

    def listen(self, told: Callable[[], None] | None) -> None:
        """Calls `told` from now on when there is something to take, in place of whom it told before. It must neither raise nor block."""
        self._told = told

    def take(self) -> Delta | None:
        """What came of one choice since it was last read; None where there is nothing."""
        return self._ready.popleft().take() if self._ready else None

    def abort(self) -> None:
        """Ends what has not ended with `ABORT`, which the reader, if it still reads, gets to see. Idempotent."""
        if not self.ended:
            self._on_abort(self)

    @property
    def ended(self) -> bool:
        """Whether the last delta of every choice is there, read or not."""
        return self._num_open == 0

    @property
    def num_generated(self) -> int:
        """Tokens accepted so far, of all choices."""
        return sum(choice.num_generated for choice in self.choices)

    # -- the engine's side -------------------------------------------------------------------------------------

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ends = frozenset(self.generation.stop_token_ids)
        return ends if self.generation.ignore_eos else ends | self._codec.stop_tokens

    def hold(self, step: BeamStep) -> bool:
        """Keeps a beam's step until a commit has accepted or discarded it; whether the beam ends with it."""
        first = self.choices[0]
        assert isinstance(first, BeamChoice)
        return first.hold(step)

    def end(self, reason: FinishReason, error: str | None = None) -> None:
        """Ends the choices that have not ended."""
        for choice in self.choices:
            if not choice.ended:
                choice.end(reason, error)

    def offer(self, choice: "Choice", *, again: bool) -> None:
        """`choice` has something to read; `again`: something of it was there already, and was not read."""
        if not again:
            self._ready.append(choice)
        self._num_open -= choice.ended
        if self._told is not None and not self._announced:
            self._announced = True
            self._announce(self)

    def tell(self) -> None:
        """Tells the reader what has been announced."""
        self._announced = False
        if self._told is not None:
            self._told()


class Choice:
    """One sequence of a stream: its tokens, its text, its end."""

    def __init__(self, stream: Stream, index: int, codec: Codec) -> None:
        self.stream = stream
        self.index = index
        self.row: int | None = None
        """Of the plans that work for it, from its first admission on."""
        self._codec = codec
        self._stop_tokens = stream.ends
        self._min_tokens = stream.generation.sampling.min_tokens
        self._detokenizer = self._fresh()
        self._logprobs: list[tuple[int, TokenLogprobs]] = []
        self._accepted: list[int] = []
        self._tentative: tuple[int, str, TokenLogprobs | None] | None = None
        self._text: list[str] = []
        self._num_tokens = 0
        self._waits_to_be_read = False
        self.finish: FinishReason | None = None
        self.error: str | None = None

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.finish is not None

    @property
    def num_generated(self) -> int:
        """Tokens accepted so far."""
        return len(self._accepted)

    def sampled(self, token: int, logprobs: TokenLogprobs | None = None) -> bool:
        """Decodes a token that a commit may accept or discard; whether the answer stops with it."""
        if token in self._stop_tokens and len(self._accepted) >= self._min_tokens:
            self._tentative = (token, "", logprobs)
            return True
        text, stopped = self._detokenizer.push((token,))
        self._tentative = (token, text, logprobs)
        return stopped

    def accept(self) -> None:
        """Delivers the sampled token."""
        assert self._tentative is not None
        token, text, logprobs = self._tentative
        self._tentative = None
        self._accepted.append(token)
        self._num_tokens += 1
        if logprobs is not None:
            self._logprobs.append((token, logprobs))
        if text:
            self._text.append(text)
            self._offer()

    def discard(self) -> None:
        """Forgets the sampled token, which will be sampled again: decodes anew what was accepted before it. O(accepted)."""
        self._tentative = None
        self._detokenizer = self._fresh()
        if self._accepted:
            self._detokenizer.push(self._accepted)

    def end(self, reason: FinishReason, error: str | None = None) -> None:
        """Ends the choice; an answer that was not cut off by a fault also delivers what the detokenizer held back."""
        assert self.finish is None
        self._tentative = None
        if reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TIMEOUT):
            rest = self._detokenizer.finish()
            if rest:
                self._text.append(rest)
        self.finish, self.error = reason, error
        self._offer()

    def take(self) -> Delta:
        """What came since it was last taken."""
        texts, logprobs = self._text, self._logprobs
        text = texts[0] if len(texts) == 1 else "".join(texts)
        said = tuple(logprobs) if logprobs else ()
        delta = Delta(text, self._num_tokens, self.finish, self.error, self.index, said)
        texts.clear()
        logprobs.clear()
        self._num_tokens = 0
        self._waits_to_be_read = False
        return delta

    def _fresh(self) -> Detokenizer:
        asked = self.stream.generation
        return self._codec.detokenizer(
            asked.stop, include_stop=asked.include_stop, min_tokens=asked.sampling.min_tokens
        )

    def _offer(self) -> None:
        self.stream.offer(self, again=self._waits_to_be_read)
        self._waits_to_be_read = True


class BeamChoice(Choice):
    """One hypothesis of a beam: silent until the beam ends, then one of the best answers, if it is among those asked for."""

    def __init__(self, stream: Stream, index: int, codec: Codec, hypotheses: Hypotheses) -> None:
        super().__init__(stream, index, codec)
        self._hypotheses = hypotheses
        self._step: BeamStep | None = None

    def hold(self, step: BeamStep) -> bool:
        """The first hypothesis holds the beam's step until a commit has accepted it; whether the beam ends with it."""
        self._step = step
        return self._hypotheses.is_settled(step)

    def sampled(self, token: int, logprobs: TokenLogprobs | None = None) -> bool:
        """Beams end as a whole, see `hold`."""
        return False

    def accept(self) -> None:
        """Takes the step in."""
        if self._step is not None:
            self._hypotheses.advance(self._step)
            self._step = None

    def discard(self) -> None:
        """The step will come again."""
        self._step = None

    def end(self, reason: FinishReason, error: str | None = None) -> None:
        """Tells the answer, unless this hypothesis is one more than was asked for."""
        if self.index >= self.stream.generation.num_sequences:
            self.finish, self.error = reason, error
            return
        if reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TIMEOUT):
            answer = self._hypotheses.best(self.index + 1)[-1]
            text, stopped = self._detokenizer.push(answer.tokens)
            if answer.ended or stopped:
                reason = FinishReason.STOP
            elif reason is FinishReason.STOP:
                reason = FinishReason.LENGTH
            self._accepted = list(answer.tokens)
            self._num_tokens = answer.length
            self._text.append(text)
        super().end(reason, error)


def _set(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)


def _choices(stream: Stream, codec: Codec) -> tuple[Choice, ...]:
    generation = stream.generation
    beam = generation.beam
    if beam is None:
        return tuple(Choice(stream, i, codec) for i in range(generation.num_sequences))
    most = generation.max_tokens
    hypotheses = Hypotheses(beam.width, most, beam.length_penalty)
    return tuple(BeamChoice(stream, i, codec, hypotheses) for i in range(beam.width))
