"""An engine that says what it is told to: no model, no scheduler, the real detokeniser.

Each generation follows a script of pieces; a piece is one token's bytes, or something that happens.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Self

import anyio
from anyio.lowlevel import checkpoint

from engine.core.errors import ServeError
from engine.core.ids import RequestId
from engine.core.plan import MemoryReport
from engine.detokenize import Detokenizer
from engine.requests import Delta, FinishReason, Generation
from tests.gateway.vocabulary import byte_chat, byte_codec

FAIL = "fail"
"""In a script: the engine fails here."""
HANG = "hang"
"""In a script: nothing comes any more."""

Script = Callable[[Generation], Iterable[bytes | str]]


class ScriptedStream:
    """Follows one script. Tokens count one each; the end of the script is a stop token."""

    def __init__(self, engine: "ScriptedEngine", number: int, generation: Generation) -> None:
        self.request_id = RequestId(number)
        self.num_prompt = len(generation.prompt)
        self._engine = engine
        self._limit = generation.max_tokens or engine.max_context - self.num_prompt
        self._script: Iterator[bytes | str] = iter(engine.script(generation))
        self._pieces: list[bytes] = []
        self._detokenizer = Detokenizer(self._pieces, generation.stop)
        self._aborted = anyio.Event()
        self._finished = False
        self.was_aborted = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        if self._finished:
            raise StopAsyncIteration
        await checkpoint()
        delta = await self._next()
        if delta.finish is not None:
            self._finished = True
            self._engine.close(self)
        return delta

    async def _next(self) -> Delta:
        if self._aborted.is_set():
            return Delta("", 0, FinishReason.ABORT)
        piece = next(self._script, None)
        if piece is None:
            return Delta(self._detokenizer.finish(), 1, FinishReason.STOP)
        if piece == FAIL:
            return Delta("", 0, FinishReason.ERROR, "the scripted model failed")
        if piece == HANG:
            await self._aborted.wait()
            return Delta("", 0, FinishReason.ABORT)
        assert isinstance(piece, bytes)
        self._pieces.append(piece)
        text, stopped = self._detokenizer.push([len(self._pieces) - 1])
        if stopped:
            return Delta(text, 1, FinishReason.STOP)
        if len(self._pieces) == self._limit:
            return Delta(text + self._detokenizer.finish(), 1, FinishReason.LENGTH)
        return Delta(text, 1)

    def abort(self) -> None:
        if not self._finished and not self._aborted.is_set():
            self.was_aborted = True
            self._engine.aborted += 1
            self._aborted.set()
            self._engine.close(self)


class ScriptedEngine:
    """Implements `gateway.engine.RunningEngine`. Counts what is open."""

    def __init__(self, script: Script, *, max_context: int = 512) -> None:
        self.script = script
        self.model_name = "scripted"
        self.max_context = max_context
        self.tokenizer = byte_codec()
        self.chat = byte_chat()
        self.seen: list[Generation] = []
        self.aborted = 0
        self.refusal: ServeError | None = None
        self.crash: Exception | None = None
        self._open: dict[int, ScriptedStream] = {}
        self.on_change: Callable[[], None] = lambda: None

    @property
    def num_open(self) -> int:
        return len(self._open)

    def open(self, generation: Generation) -> ScriptedStream:
        if self.refusal is not None:
            raise self.refusal
        self.seen.append(generation)
        stream = ScriptedStream(self, len(self.seen), generation)
        self._open[stream.request_id] = stream
        self.on_change()
        return stream

    def close(self, stream: ScriptedStream) -> None:
        self._open.pop(stream.request_id, None)
        self.on_change()

    def memory(self) -> MemoryReport:
        return MemoryReport(
            block_size=16,
            total_blocks=8,
            free_blocks=8 - self.num_open,
            held_blocks=self.num_open,
            used_tokens=0,
            allocated_tokens=16 * self.num_open,
            num_running=self.num_open,
            num_waiting=0,
        )

    async def run(self) -> None:
        await anyio.sleep_forever()
