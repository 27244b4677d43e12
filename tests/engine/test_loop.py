"""The live loop on the scripted executor: what a stream delivers, what is refused, and how everything ends."""

import threading

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from engine.core.errors import CapacityError, ConfigError, ExecutorError, RequestError
from engine.requests import Delta, FinishReason
from tests.engine.gate import Gate
from tests.engine.running import running
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


def model_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("kilburn-")]


# -- streams -----------------------------------------------------------------------------------------------------


async def test_stream_delivers_every_token_once_and_one_finish():
    config = core_config()
    engine = toy_engine(config, scripted(config))
    async with running(engine):
        deltas = await read(engine.open(generation([1, 2, 3], max_tokens=10)))
    assert text_of(deltas) == spelled(scripted_answer(np.array([1, 2, 3], np.int32), 10))
    assert tokens_of(deltas) == 10
    assert [d.finish for d in deltas if d.finish] == [FinishReason.LENGTH]
    assert deltas[-1].finish is FinishReason.LENGTH
    assert engine.memory().held_blocks == 0


async def test_slow_reader_gets_one_merged_delta_and_holds_nobody_up():
    config = core_config(num_blocks=32)
    engine = toy_engine(config, scripted(config))
    async with running(engine):
        slow = engine.open(generation([1, 2, 3], max_tokens=20))
        others = [engine.open(generation([n], max_tokens=20)) for n in range(4, 8)]
        for other in others:
            assert tokens_of(await read(other)) == 20
        while not slow.ended:
            await anyio.lowlevel.checkpoint()
        answer = spelled(scripted_answer(np.array([1, 2, 3], np.int32), 20))
        assert await read(slow) == [Delta(answer, 20, FinishReason.LENGTH)]


async def test_fast_reader_gets_a_delta_a_token():
    config, gate = core_config(), Gate()
    engine = toy_engine(config, scripted(config, pace=gate))
    async with running(engine):
        stream = engine.open(generation([1, 2, 3], max_tokens=4))
        counts = []
        for _ in range(3):
            gate.let_go(1)
            counts.append((await anext(stream)).num_tokens)
        gate.open()
        counts.append((await anext(stream)).num_tokens)
    assert counts == [1, 1, 1, 1]


async def test_stop_token_ends_the_answer_and_is_not_shown():
    config = core_config()
    engine = toy_engine(config, scripted(config, answer=lambda prompt: [5, 6, END, 7]))
    async with running(engine):
        deltas = await read(engine.open(generation([1], max_tokens=10)))
    assert (text_of(deltas), tokens_of(deltas)) == ("<5><6>", 3)
    assert deltas[-1].finish is FinishReason.STOP


async def test_ignored_stop_token_is_a_token_like_others():
    config = core_config()
    engine = toy_engine(config, scripted(config, answer=lambda prompt: [5, END, 7, 8]))
    async with running(engine):
        deltas = await read(engine.open(generation([1], max_tokens=4, ignore_eos=True)))
    assert (text_of(deltas), deltas[-1].finish) == ("<5><0><7><8>", FinishReason.LENGTH)


async def test_stop_string_on_the_last_allowed_token_is_a_stop():
    config = core_config()
    engine = toy_engine(config, scripted(config, answer=lambda prompt: [5, 6, 7]))
    async with running(engine):
        deltas = await read(engine.open(generation([1], max_tokens=3, stop=("<7>",))))
    assert (text_of(deltas), deltas[-1].finish) == ("<5><6>", FinishReason.STOP)


async def test_text_held_back_for_a_stop_string_comes_with_the_end():
    config = core_config()
    engine = toy_engine(config, scripted(config, answer=lambda prompt: [5, 6, 7]))
    async with running(engine):
        deltas = await read(engine.open(generation([1], max_tokens=2, stop=("<6><9>",))))
    assert (text_of(deltas), deltas[-1].finish) == ("<5><6>", FinishReason.LENGTH)


async def test_absent_max_tokens_is_what_the_context_leaves():
    config = core_config(num_blocks=64, max_context=40)
    engine = toy_engine(config, scripted(config))
    async with running(engine):
        assert tokens_of(await read(engine.open(generation([1, 2], None)))) == 38


async def test_second_reader_of_a_stream_is_refused():
    config = core_config()
    engine = toy_engine(config, scripted(config))
    stream = engine.open(generation([1], max_tokens=2))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read, stream)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match="one reader"):
            await anext(stream)
        tasks.start_soon(engine.run)
        while not stream.ended:
            await anyio.lowlevel.checkpoint()
        engine.stop()


async def test_stream_that_was_read_to_its_end_stays_ended():
    config = core_config()
    engine = toy_engine(config, scripted(config))
    async with running(engine):
        stream = engine.open(generation([1], max_tokens=2))
        await read(stream)
        assert await read(stream) == []


# -- aborts: FR-10 -----------------------------------------------------------------------------------------------


async def test_abort_is_idempotent_and_without_effect_after_the_end():
    config = core_config()
    engine = toy_engine(config, scripted(config))
    async with running(engine):
        ended = engine.open(generation([1], max_tokens=2))
        deltas = await read(ended)
        ended.abort()
        assert deltas[-1].finish is FinishReason.LENGTH
        stream = engine.open(generation([1], max_tokens=9))
        stream.abort()
        stream.abort()
        assert [d.finish for d in await read(stream)] == [FinishReason.ABORT]


@pytest.mark.parametrize("state", ["waiting", "prefilling", "decoding", "preempted"])
async def test_aborted_request_gives_its_frames_back_whatever_its_state(state):
    config = core_config(num_blocks=8, block_size=4, max_batch=2, token_budget=4)
    gate = Gate()
    engine = toy_engine(config, scripted(config, pace=gate))
    others = [engine.open(generation([n] * 6, max_tokens=20)) for n in (1, 2)]
    victim, steps = {
        "waiting": (engine.open(generation([3] * 6, max_tokens=20)), 1),
        "prefilling": (others[0], 0),
        "decoding": (others[0], 6),
        "preempted": (others[1], 30),
    }[state]
    async with running(engine):
        if state == "preempted":
            while not engine.counters.preemptions:
                gate.let_go(1)
                await anyio.lowlevel.checkpoint()
        else:
            gate.let_go(steps)
            await in_thread(gate.wait_until_running, steps)
            await anyio.wait_all_tasks_blocked()
        assert not victim.ended
        victim.abort()
        assert victim.ended
        gate.open()
        for stream in others:
            await read(stream)
        await read(engine.open(generation([9], max_tokens=1)))
    memory = engine.memory()
    assert (memory.held_blocks, memory.num_running, memory.num_waiting) == (0, 0, 0)
    assert engine.num_open == 0


# -- failures: FR-11 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [6, 11])
async def test_failed_row_ends_alone_and_with_its_message(position):
    config = core_config(num_blocks=16)
    executor = scripted(
        config,
        row_fault=lambda request, at: "not a number" if (request, at) == (0, position) else None,
    )
    engine = toy_engine(config, executor)
    async with running(engine):
        bad = engine.open(generation([1] * 6, max_tokens=10))
        good = engine.open(generation([2] * 6, max_tokens=10))
        deltas = await read(bad)
        assert deltas[-1].finish is FinishReason.ERROR
        assert deltas[-1].error == "not a number"
        assert tokens_of(deltas) == position - 6
        assert tokens_of(await read(good)) == 10


@pytest.mark.parametrize("fault", [MemoryError("lost"), SystemExit(1)])
async def test_dead_executor_ends_every_stream_with_an_error_and_the_run_with_its_cause(fault):
    config = core_config()
    executor = scripted(config, step_fault=lambda plan: fault if plan.step == 3 else None)
    engine = toy_engine(config, executor)
    streams = [engine.open(generation([n] * 6, max_tokens=20)) for n in range(1, 5)]
    with pytest.raises(ExecutorError, match="model runner died") as caught:
        await engine.run()
    assert caught.value.__cause__ is fault
    for stream in streams:
        last = (await read(stream))[-1]
        assert (last.finish, last.error) == (FinishReason.ERROR, "the model runner died")
    assert engine.memory().held_blocks == 0
    assert model_threads() == []
    with pytest.raises(CapacityError, match="model runner died"):
        engine.open(generation([1]))


async def test_executor_that_answers_for_too_few_rows_is_dead():
    config = core_config()
    executor = scripted(config)
    whole = executor.execute

    def halved(plan, new):
        sampled = whole(plan, new)
        return type(sampled)(sampled.tokens[:-1])

    executor.execute = halved
    engine = toy_engine(config, executor)
    stream = engine.open(generation([1], max_tokens=4))
    with pytest.raises(ExecutorError, match="sampled 0 tokens where 1 were asked for"):
        await engine.run()
    assert (await read(stream))[-1].finish is FinishReason.ERROR


async def test_broken_core_fails_open_streams_and_ends_the_run(caplog):
    config = core_config()

    def lose_plans(plan):
        if plan.step == 2:
            engine._desk._scheduler._book.open.clear()

    executor = scripted(config, pace=lose_plans)
    engine = toy_engine(config, executor)
    streams = [engine.open(generation([n] * 6, max_tokens=20)) for n in range(1, 4)]
    with pytest.raises(ValueError, match="plans commit in the order"):
        await engine.run()
    for stream in streams:
        last = (await read(stream))[-1]
        assert (last.finish, last.error) == (FinishReason.ERROR, "the server has failed")
    assert "its core broke" in caplog.text
    assert model_threads() == []


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_streams_that_are_open_when_the_engine_ends_get_an_error(how):
    config, gate = core_config(), Gate()
    engine = toy_engine(config, scripted(config, pace=gate))
    streams = [engine.open(generation([n] * 6, max_tokens=20)) for n in range(1, 4)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        gate.let_go(3)
        await in_thread(gate.wait_until_running, 3)
        engine.stop() if how == "stop" else tasks.cancel_scope.cancel()
        gate.open()
    for stream in streams:
        last = (await read(stream))[-1]
        assert (last.finish, last.error) == (FinishReason.ERROR, "the server is shutting down")
    assert engine.memory().held_blocks == 0
    assert model_threads() == []
    with pytest.raises(CapacityError, match="shutting down"):
        engine.open(generation([1]))


async def test_step_that_never_ends_does_not_keep_a_stopping_engine():
    config, gate = core_config(), Gate()
    engine = toy_engine(config, scripted(config, pace=gate), stop_limit_s=0.0)
    stream = engine.open(generation([1], max_tokens=4))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        await in_thread(gate.wait_until_running, 0)
        engine.stop()
    assert (await read(stream))[-1].finish is FinishReason.ERROR
    stuck = next(
        thread for thread in threading.enumerate() if thread.name == "kilburn-model runner"
    )
    gate.open()
    await in_thread(stuck.join)


async def test_clock_that_jumps_back_stops_nothing():
    config, times = core_config(), iter(range(10**9, 0, -(10**6)))
    engine = toy_engine(config, scripted(config), clock=lambda: next(times))
    async with running(engine):
        assert tokens_of(await read(engine.open(generation([1], max_tokens=20)))) == 20


# -- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "code", "param"),
    [
        ([], 4, "empty_prompt", "prompt"),
        ([1], 0, "bad_max_tokens", "max_tokens"),
        ([1] * 64, None, "context_exceeded", "prompt"),
        ([1] * 10, 55, "context_exceeded", "max_tokens"),
        ([1] * 10, 40, "pool_exceeded", "max_tokens"),
        ([1] * 40, None, "pool_exceeded", "prompt"),
        ([256], 4, "token_out_of_range", "prompt"),
        ([-1], 4, "token_out_of_range", "prompt"),
    ],
)
async def test_request_that_can_never_run_is_refused_at_once(prompt, max_tokens, code, param):
    """FR-04, live: nobody behind it waits."""
    config = core_config(num_blocks=8, block_size=4, max_context=64)
    engine = toy_engine(config, scripted(config))
    async with running(engine):
        with pytest.raises(RequestError) as refused:
            engine.open(generation(prompt, max_tokens))
        assert (refused.value.reason, refused.value.param) == (code, param)
        assert tokens_of(await read(engine.open(generation([1], max_tokens=3)))) == 3


async def test_full_queue_refuses_requests_until_some_are_admitted():
    config = core_config(max_batch=1)
    engine = toy_engine(config, scripted(config), max_queue_requests=2)
    first = [engine.open(generation([n], max_tokens=2)) for n in (1, 2)]
    with pytest.raises(CapacityError, match="2 requests are waiting"):
        engine.open(generation([3], max_tokens=2))
    async with running(engine):
        await read(first[0])
        assert tokens_of(await read(engine.open(generation([3], max_tokens=2)))) == 2
        await read(first[1])


async def test_queue_is_bounded_in_prompt_tokens_and_one_long_prompt_may_wait_alone():
    config = core_config()
    engine = toy_engine(config, scripted(config), max_queue_tokens=10)
    long = engine.open(generation([1] * 12, max_tokens=2))
    with pytest.raises(CapacityError, match="12 prompt tokens are waiting"):
        engine.open(generation([1], max_tokens=2))
    long.abort()
    engine.open(generation([1] * 9, max_tokens=2)).abort()
    assert engine.num_open == 0


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"num_blocks": 9}, "the model runner has 8 of 4"),
        ({"block_size": 8}, "the model runner has 8 of 4"),
        ({"max_context": 128}, "the model holds at most 64"),
    ],
)
async def test_config_that_the_executor_cannot_serve_is_refused(other, message):
    with pytest.raises(ConfigError, match=message):
        toy_engine(core_config(**other), scripted(core_config()))
