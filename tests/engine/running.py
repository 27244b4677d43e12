"""An engine that runs while a test talks to it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from engine.loop import Engine
from engine.requests import Delta


@asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[None]:
    """Not for tests in which `run` raises or is cancelled."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        yield
        engine.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Lets everything else go on until `condition` holds."""
    with anyio.fail_after(60):
        while not condition():
            await anyio.lowlevel.checkpoint()


def said(deltas: list[Delta]) -> dict[int, list[int]]:
    """Tokens of each choice, spelled by the toy codec."""
    texts: dict[int, str] = {}
    for delta in deltas:
        texts[delta.index] = texts.get(delta.index, "") + delta.text
    return {i: [int(token) for token in text[1:-1].split("><")] for i, text in texts.items()}
