"""Thousands of requests with aborts, disconnects, slow readers and a model that fails: everybody is told one end."""

import anyio
import pytest

from engine.core.errors import ExecutorError
from engine.requests import FinishReason
from tests.engine.crowd import let_in
from tests.engine.toy import core_config, scripted, toy_engine


@pytest.mark.parametrize("max_open_plans", [1, 2])
async def test_crowd_gets_one_end_each_and_leaves_the_pool_free(max_open_plans):
    config = core_config(
        num_blocks=24, block_size=4, token_budget=32, max_batch=12, max_open_plans=max_open_plans
    )
    executor = scripted(
        config,
        vocab_size=30,
        step_fault=lambda plan: ExecutorError("hiccup") if plan.step % 61 == 60 else None,
        row_fault=lambda request, at: "not a number" if (request * 31 + at) % 997 == 0 else None,
    )
    engine = toy_engine(config, executor, max_queue_requests=60)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            told = await let_in(engine, clients=2000, seed=max_open_plans)
            assert engine.num_open == 0
            engine.stop()
    assert told.wrong == []
    assert told.finishes.total() + told.left + told.refused == 2000
    seen = set(FinishReason) - {FinishReason.TIMEOUT}
    assert min(told.finishes[reason] for reason in seen) > 0
    assert min(told.left, told.refused, engine.counters.preemptions) > 0
    memory = engine.memory()
    assert (memory.held_blocks, memory.num_running, memory.num_waiting) == (0, 0, 0)
