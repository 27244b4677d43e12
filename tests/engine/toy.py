"""A codec whose text spells its tokens, and short ways to build and to read an engine. For tests of the live loop."""

import asyncio
from collections.abc import Sequence

import msgspec
import numpy as np

from engine.core.config import CoreConfig
from engine.executor import SamplingParams
from engine.loop import Engine, Recorder
from engine.requests import Delta, Generation
from engine.scripted import ScriptedExecutor
from engine.streams import Stream

END = 0


class SpellingDetokenizer:
    """Token 7 reads `<7>`. Holds back what a stop string could still grow from: slow and obvious."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._sent = 0
        self._text = ""

    def push(self, tokens: Sequence[int]) -> tuple[str, bool]:
        self._text += spelled(tokens)
        ends = [self._text.index(s) for s in self._stop if s in self._text]
        begun = [s[:n] for s in self._stop for n in range(len(s)) if self._text.endswith(s[:n])]
        held = max(map(len, begun), default=0)
        return self._send(min(ends, default=len(self._text) - held)), bool(ends)

    def finish(self) -> str:
        stopped = any(s in self._text for s in self._stop)
        return "" if stopped else self._send(len(self._text))

    def _send(self, end: int) -> str:
        text, self._sent = self._text[self._sent : end], end
        return text


class SpellingCodec:
    stop_tokens = frozenset({END})

    def detokenizer(
        self, stop: tuple[str, ...], *, include_stop: bool, min_tokens: int
    ) -> SpellingDetokenizer:
        return SpellingDetokenizer(stop)


def spelled(tokens: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


def core_config(
    num_blocks: int = 8,
    block_size: int = 4,
    max_context: int = 64,
    host_blocks: int = 0,
    prefix_cache: bool = True,
    watermark: float = 0.01,
    **scheduler: object,
) -> CoreConfig:
    return msgspec.convert(
        {
            "memory": {
                "num_blocks": num_blocks,
                "block_size": block_size,
                "host_blocks": host_blocks,
                "prefix_cache": prefix_cache,
                "watermark": watermark,
            },
            "scheduler": {
                "max_context": max_context,
                "token_budget": 64,
                "max_batch": 16,
                **scheduler,
            },
        },
        CoreConfig,
    )


def scripted(config: CoreConfig, **options: object) -> ScriptedExecutor:
    return ScriptedExecutor(
        num_blocks=config.memory.num_blocks,
        block_size=config.memory.block_size,
        host_blocks=config.memory.host_blocks,
        max_context=config.scheduler.max_context,
        **options,  # type: ignore[arg-type]
    )


def toy_engine(
    config: CoreConfig,
    executor: ScriptedExecutor,
    recorder: Recorder | None = None,
    **options: object,
) -> Engine:
    return Engine(
        executor,
        config,
        SpellingCodec(),
        model_name="toy",
        recorder=recorder,
        **options,  # type: ignore[arg-type]
    )


def generation(
    prompt: Sequence[int],
    max_tokens: int | None = None,
    stop: tuple[str, ...] = (),
    ignore_eos: bool = False,
    **fields: object,
) -> Generation:
    return Generation(
        prompt=np.array(prompt, np.int32),
        max_tokens=max_tokens,
        sampling=SamplingParams(),
        stop=stop,
        ignore_eos=ignore_eos,
        **fields,  # type: ignore[arg-type]
    )


async def read(stream: Stream) -> list[Delta]:
    return [delta async for delta in stream]


def text_of(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def tokens_of(deltas: Sequence[Delta]) -> int:
    return sum(delta.num_tokens for delta in deltas)


async def in_thread(call: object, *args: object) -> None:
    """Waits for a blocking call, such as `Gate.wait_until_running`, without blocking the event loop."""
    await asyncio.to_thread(call, *args)  # type: ignore[arg-type]
