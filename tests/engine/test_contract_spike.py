"""The contract of the core with a model that is still computing: 8 frames, two open plans, and everything that can end."""

import anyio
import numpy as np
import pytest

from engine.core.errors import ExecutorError
from engine.requests import FinishReason
from tests.engine.gate import Gate
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
from tests.reference.scripted import scripted_answer

PROMPT = [5, 6, 7, 8, 9, 10]


def whole_answer(prompt: list[int], num_tokens: int) -> str:
    return spelled(scripted_answer(np.array(prompt, np.int32), num_tokens))


async def test_a_second_plan_is_handed_over_while_the_first_runs():
    config, gate = core_config(), Gate()
    executor = scripted(config, pace=gate)
    engine = toy_engine(config, executor)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        stream = engine.open(generation(PROMPT, max_tokens=4))
        await in_thread(gate.wait_until_running, 0)
        # The event loop stands still from here: step 1 must already be in the worker's queue.
        gate.let_go(1)
        gate.wait_until_running(1)
        gate.open()
        deltas = await read(stream)
        engine.stop()
    assert text_of(deltas) == whole_answer(PROMPT, 4)


async def test_abort_during_a_plan_keeps_its_frames_until_the_last_plan_commits():
    config, gate = core_config(), Gate()
    engine = toy_engine(config, scripted(config, pace=gate))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        stream = engine.open(generation(PROMPT, max_tokens=20))
        await in_thread(gate.wait_until_running, 0)
        await anyio.wait_all_tasks_blocked()
        stream.abort()
        deltas = await read(stream)
        assert [d.finish for d in deltas] == [FinishReason.ABORT]
        assert engine.memory().held_blocks == 2
        gate.let_go(1)
        await in_thread(gate.wait_until_running, 1)
        await anyio.wait_all_tasks_blocked()
        assert engine.memory().held_blocks == 2
        gate.let_go(1)
        # A newcomer runs through: the engine serves on, and nothing of the aborted one is left.
        gate.open()
        after = await read(engine.open(generation([1], max_tokens=2)))
        assert text_of(after) == whole_answer([1], 2)
        assert engine.memory().held_blocks == 0
        engine.stop()


async def test_sequence_that_stops_while_the_next_plan_is_open_streams_nothing_more():
    config, gate = core_config(), Gate()
    executor = scripted(config, pace=gate, answer=lambda prompt: [3, 4, END, 5, 6])
    engine = toy_engine(config, executor)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        stream = engine.open(generation(PROMPT, max_tokens=20))
        gate.let_go(3)
        deltas = await read(stream)
        assert text_of(deltas) == "<3><4>"
        assert tokens_of(deltas) == 3
        assert deltas[-1].finish is FinishReason.STOP
        # Step 2 sampled the end; step 3, planned before that was known, still holds the frames.
        await in_thread(gate.wait_until_running, 3)
        assert engine.memory().held_blocks > 0
        gate.open()
        await read(engine.open(generation([1], max_tokens=1)))
        assert engine.memory().held_blocks == 0
        engine.stop()
    assert executor.num_steps == 5


async def test_sequence_that_reaches_its_length_is_in_no_later_plan():
    config = core_config()
    executor = scripted(config)
    engine = toy_engine(config, executor)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        deltas = await read(engine.open(generation(PROMPT, max_tokens=3)))
        engine.stop()
    assert tokens_of(deltas) == 3
    assert executor.num_steps == 3


@pytest.mark.parametrize("token_budget", [64, 4])
async def test_resumed_request_repeats_prompt_and_output_and_streams_no_token_twice(token_budget):
    """FR-05, live: both fit alone and not together, so one is preempted after it has produced output."""
    config = core_config(num_blocks=8, block_size=4, token_budget=token_budget, max_batch=4)
    engine = toy_engine(config, scripted(config))
    other = [11, 12, 13, 14, 15, 16]
    answers: dict[int, list] = {}

    async def ask(prompt: list[int]) -> None:
        answers[prompt[0]] = await read(engine.open(generation(prompt, max_tokens=20)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        async with anyio.create_task_group() as clients:
            clients.start_soon(ask, PROMPT)
            clients.start_soon(ask, other)
        engine.stop()
    assert engine.counters.preemptions >= 1
    for prompt in (PROMPT, other):
        assert text_of(answers[prompt[0]]) == whole_answer(prompt, 20)
        assert tokens_of(answers[prompt[0]]) == 20
    assert engine.memory().held_blocks == 0


async def test_sample_that_preemption_discards_is_decoded_once():
    """Every stop string of two tokens, so that one begins before the discarded sample and ends with it or after it."""
    config, prompt = core_config(num_blocks=8, block_size=4), [11, 12, 13, 14, 15, 16]
    tokens = scripted_answer(np.array(prompt, np.int32), 20)
    discarded = 0
    for at in range(19):
        stop = spelled(tokens[at : at + 2])
        sampled: list[tuple[int, int]] = []
        executor = scripted(config, row_fault=lambda *where, s=sampled: s.append(where))
        engine = toy_engine(config, executor)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            old = engine.open(generation(PROMPT, max_tokens=20))
            young = engine.open(generation(prompt, max_tokens=20, stop=(stop,)))
            deltas = await read(young)
            assert text_of(await read(old)) == whole_answer(PROMPT, 20)
            engine.stop()
        assert text_of(deltas) == spelled(tokens[:at])
        assert tokens_of(deltas) == at + 2
        discarded += len(sampled) - len(set(sampled))
    assert discarded > 0


async def test_failed_step_ends_only_the_requests_that_it_named():
    config, gate = core_config(num_blocks=16), Gate()
    executor = scripted(
        config,
        pace=gate,
        step_fault=lambda plan: ExecutorError("the device hiccuped") if plan.step == 1 else None,
    )
    engine = toy_engine(config, executor)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        first = engine.open(generation(PROMPT, max_tokens=8))
        await in_thread(gate.wait_until_running, 0)
        await anyio.wait_all_tasks_blocked()
        later = engine.open(generation([1, 2], max_tokens=8))
        gate.open()
        failed, fine = await read(first), await read(later)
        engine.stop()
    assert failed[-1].finish is FinishReason.ERROR
    assert failed[-1].error == "the device hiccuped"
    assert text_of(fine) == whole_answer([1, 2], 8)
    assert engine.memory().held_blocks == 0
