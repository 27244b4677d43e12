"""The live loop on the scripted executor: what a stream delivers, and what happens to the pool."""

import anyio
import numpy as np
import pytest

from engine.core.errors import CapacityError, ConfigError, ExecutorError, RequestError
from engine.requests import FinishReason
from engine.scripted import Gate, scripted_answer
from tests.engine.toy import (
    END,
    core_config,
    generation,
    in_thread,
    read,
    scripted,
    spelled,
    text_of,
    tokens_of,
    toy_engine,
)


async def test_stream_delivers_every_token_once_and_one_finish():
    config = core_config()
    engine = toy_engine(config, scripted(config))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        deltas = await read(engine.open(generation([1, 2, 3], max_tokens=10)))
        engine.stop()
    assert text_of(deltas) == spelled(scripted_answer(np.array([1, 2, 3], np.int32), 10))
    assert tokens_of(deltas) == 10
    assert [d.finish for d in deltas if d.finish] == [FinishReason.LENGTH]
    assert deltas[-1].finish is FinishReason.LENGTH
    assert engine.memory().held_blocks == 0
