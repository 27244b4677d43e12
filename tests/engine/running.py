"""An engine that runs while a test talks to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from engine.loop import Engine


@asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[None]:
    """Not for tests in which `run` raises or is cancelled."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        yield
        engine.stop()
