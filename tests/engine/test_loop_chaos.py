"""Ten thousand requests with aborts, disconnects, slow readers, deadlines, a model that fails and transfers that fail: everybody is
told one end of each choice, every answer is right, and nothing is held at the end.
"""

import anyio
import pytest

from engine.core.errors import ExecutorError
from engine.requests import FinishReason
from tests.engine.crowd import VOCABULARY, Habits, let_in
from tests.engine.toy import core_config, scripted, toy_engine

CLIENTS = 2000


@pytest.mark.parametrize(
    ("policy", "preemption", "max_open_plans"),
    [
        ("fcfs", "recompute", 1),
        ("fcfs", "recompute", 2),
        ("fcfs", "swap", 2),
        ("priority", "swap", 1),
        ("fair", "swap", 2),
    ],
)
async def test_crowd_gets_one_end_a_choice_and_leaves_the_pool_free(
    policy, preemption, max_open_plans
):
    config = core_config(
        num_blocks=24,
        block_size=4,
        host_blocks=30,
        token_budget=32,
        max_batch=12,
        max_open_plans=max_open_plans,
        policy=policy,
        aging_ns=20_000_000,
        preemption=preemption,
    )
    executor = scripted(
        config,
        vocab_size=VOCABULARY,
        step_fault=lambda plan: ExecutorError("hiccup") if plan.step % 61 == 60 else None,
        row_fault=lambda request, at: "not a number" if (request * 31 + at) % 997 == 0 else None,
        move_fault=lambda number: ExecutorError("a lost page") if number % 7 == 6 else None,
    )
    engine = toy_engine(config, executor, max_queue_requests=60)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            told = await let_in(engine, CLIENTS, max_open_plans, Habits(deadlines=True), 60)
            assert engine.num_open == 0
            engine.stop()
    assert told.wrong == []
    assert min(told.finishes[reason] for reason in FinishReason) > 0
    assert min(told.left, told.refused, told.cached_tokens, engine.counters.preemptions) > 0
    assert (engine.counters.swaps > 0) == (preemption == "swap")
    memory = engine.memory()
    assert (memory.held_blocks, memory.moving_blocks, memory.host_used_blocks) == (0, 0, 0)
    assert (memory.num_running, memory.num_waiting, memory.num_swapped) == (0, 0, 0)
    assert memory.free_blocks + memory.cached_blocks == memory.total_blocks
