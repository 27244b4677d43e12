"""Deadlines under the live loop: whoever is past its own ends with that reason, whatever state it is in and though nothing else happens."""

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from engine.requests import FinishReason
from tests.engine.gate import Gate
from tests.engine.running import running
from tests.engine.toy import (
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


class Hands:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


async def test_request_past_its_deadline_keeps_what_it_was_told_and_ends_with_that_reason():
    config, gate, clock = core_config(num_blocks=32), Gate(), Hands()
    engine = toy_engine(config, scripted(config, pace=gate), clock=clock)
    async with running(engine):
        stream = engine.open(generation([1, 2, 3], 20, ("<no>",), deadline_ms=5))
        other = engine.open(generation([4, 5], 20))
        gate.let_go(3)
        while stream.num_generated < 3:
            await anyio.lowlevel.checkpoint()
        clock.now = 4_999_999
        gate.let_go()
        while stream.num_generated < 4:
            await anyio.lowlevel.checkpoint()
        assert not stream.ended
        clock.now = 5_000_000
        gate.let_go()
        deltas = await read(stream)
        gate.open()
        assert tokens_of(await read(other)) == 20
    assert deltas[-1].finish is FinishReason.TIMEOUT
    assert deltas[-1].error is None
    answer = scripted_answer(np.array([1, 2, 3], np.int32), 20)
    assert text_of(deltas) == spelled(answer[: tokens_of(deltas)])
    assert engine.memory().held_blocks == 0


@pytest.mark.parametrize("state", ["waiting", "running"])
async def test_deadline_passes_though_nothing_else_happens(state):
    """The real clock, and a model that hangs: only the timer can tell."""
    config, gate = core_config(num_blocks=32, max_batch=1), Gate()
    engine = toy_engine(config, scripted(config, pace=gate))
    async with running(engine):
        if state == "waiting":
            first = engine.open(generation([1], 2))
        stream = engine.open(generation([2], 4, deadline_ms=20))
        with anyio.fail_after(60):
            deltas = await read(stream)
        assert [delta.finish for delta in deltas] == [FinishReason.TIMEOUT]
        gate.open()
        if state == "waiting":
            assert tokens_of(await read(first)) == 2
    assert engine.memory().held_blocks == 0


async def test_every_choice_of_a_request_ends_at_its_deadline():
    config, gate = core_config(num_blocks=32), Gate()
    engine = toy_engine(config, scripted(config, pace=gate))
    async with running(engine):
        stream = engine.open(generation([2], 40, num_sequences=3, deadline_ms=20))
        gate.let_go(2)
        with anyio.fail_after(60):
            deltas = await read(stream)
        gate.open()
    finishes = {delta.index: delta.finish for delta in deltas if delta.finish}
    assert finishes == dict.fromkeys(range(3), FinishReason.TIMEOUT)


async def test_deadline_that_was_met_ends_nothing():
    config = core_config(num_blocks=32)
    engine = toy_engine(config, scripted(config))
    async with running(engine):
        stream = engine.open(generation([2], 4, deadline_ms=60_000))
        assert (await read(stream))[-1].finish is FinishReason.LENGTH


async def test_expired_request_leaves_the_queue_bounds():
    config, gate = core_config(max_batch=1), Gate()
    engine = toy_engine(config, scripted(config, pace=gate), max_queue_requests=1)
    async with running(engine):
        engine.open(generation([1], 2)).abort()
        first = engine.open(generation([1], 2))
        await in_thread(gate.wait_until_running, 0)
        with anyio.fail_after(60):
            assert (await read(engine.open(generation([2], 2, deadline_ms=1))))[-1].finish
        waiting = engine.open(generation([3], 2))
        gate.open()
        await read(first)
        assert tokens_of(await read(waiting)) == 2


async def test_who_waits_rises_with_age_though_nothing_else_happens():
    """A transfer holds everything up; meanwhile the lower class grows older than the one that came later."""
    config, clock = core_config(max_batch=1, policy="priority", aging_ns=1_000_000), Hands()
    gate = Gate()
    engine = toy_engine(config, scripted(config, pace=gate), clock=clock)
    async with running(engine):
        first = engine.open(generation([1], 2))
        await in_thread(gate.wait_until_running, 0)
        low = engine.open(generation([2], 2, priority=1))
        clock.now = 2_000_000
        high = engine.open(generation([3], 2, priority=0))
        gate.open()
        order = []

        async def note(name, stream):
            await read(stream)
            order.append(name)

        async with anyio.create_task_group() as tasks:
            for name, stream in (("first", first), ("high", high), ("low", low)):
                tasks.start_soon(note, name, stream)
    assert order == ["first", "low", "high"]
