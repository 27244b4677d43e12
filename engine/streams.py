"""Stream: what one client reads of its generation, one merged delta at a time.

Knows tokens, text and one reader; knows no scheduler and no transport. The engine writes from the event loop, never
blocks, and never waits for the reader: what has not been read is merged into one pending `Delta`, so that a slow reader
gets fewer and larger pieces and costs no more memory than its answer.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from engine.core.ids import RequestId
from engine.requests import Delta, FinishReason, Generation


class Detokenizer(Protocol):
    """One stream's way from tokens to text."""

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

    def detokenizer(self, stop: tuple[str, ...]) -> Detokenizer:
        """A fresh one, which ends at the first of the strings in `stop`."""
        ...


class Stream:
    """An asynchronous iterator of `Delta`: exactly one has `finish` set, and it is the last. For one reader."""

    def __init__(
        self,
        request_id: RequestId,
        generation: Generation,
        codec: Codec,
        on_abort: Callable[["Stream"], None],
    ) -> None:
        self.request_id = request_id
        self.num_prompt = len(generation.prompt)
        self.generation = generation
        self.num_generated = 0
        """Tokens accepted so far."""
        self._codec = codec
        self._stop_tokens = frozenset() if generation.ignore_eos else codec.stop_tokens
        self._on_abort = on_abort
        self._detokenizer = codec.detokenizer(generation.stop)
        self._accepted: list[int] = []
        self._tentative: tuple[int, str, bool] | None = None
        self._text: list[str] = []
        self._num_tokens = 0
        self._finish: FinishReason | None = None
        self._error: str | None = None
        self._over = False
        self._reader: asyncio.Future[None] | None = None

    # -- the reader's side -------------------------------------------------------------------------------------

    def __aiter__(self) -> "Stream":
        """Itself."""
        return self

    async def __anext__(self) -> Delta:
        """What came since the last read; waits until there is text or the end.

        Raises:
            StopAsyncIteration: the last delta has been read.
            RuntimeError: another task is reading.
        """
        while not self._text and self._finish is None:
            if self._reader is not None:
                raise RuntimeError("a stream has one reader, and another task is reading this one")
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if self._over:
            raise StopAsyncIteration
        delta = Delta("".join(self._text), self._num_tokens, self._finish, self._error)
        self._text.clear()
        self._num_tokens = 0
        self._over = self._finish is not None
        return delta

    def abort(self) -> None:
        """Ends the generation; the reader, if it still reads, gets `ABORT`. Without effect on a stream that ended."""
        if self._finish is None:
            self._on_abort(self)

    @property
    def ended(self) -> bool:
        """Whether its last delta is there, read or not."""
        return self._finish is not None

    # -- the engine's side -------------------------------------------------------------------------------------

    def sampled(self, token: int) -> bool:
        """Decodes a token that a commit may accept or discard; whether the answer stops with it."""
        if token in self._stop_tokens:
            self._tentative = (token, "", True)
            return True
        text, stopped = self._detokenizer.push((token,))
        self._tentative = (token, text, stopped)
        return stopped

    def accept(self) -> None:
        """Delivers the sampled token."""
        assert self._tentative is not None
        token, text, _ = self._tentative
        self._tentative = None
        self._accepted.append(token)
        self.num_generated += 1
        self._num_tokens += 1
        if text:
            self._text.append(text)
            self._wake()

    def discard(self) -> None:
        """Forgets the sampled token, which will be sampled again: decodes anew what was accepted before it. O(accepted)."""
        self._tentative = None
        self._detokenizer = self._codec.detokenizer(self.generation.stop)
        if self._accepted:
            self._detokenizer.push(self._accepted)

    def end(self, reason: FinishReason, error: str | None = None) -> None:
        """Ends the stream; a complete answer also delivers what the detokenizer held back."""
        assert self._finish is None
        self._tentative = None
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            rest = self._detokenizer.finish()
            if rest:
                self._text.append(rest)
        self._finish, self._error = reason, error
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
