"""Swapping under the live loop: transfers beside steps, failing ones, aborts meanwhile, and a recorded timeline that shows the overlap."""

import anyio
import numpy as np
import pytest

from engine.core.errors import ConfigError, ExecutorError
from engine.core.journal import Commit, Transferred
from engine.core.log import Preempted, SwapEnded, SwapStarted
from engine.requests import FinishReason
from tests.engine.gate import Gate, MoveGate
from tests.engine.running import running, until
from tests.engine.toy import (
    core_config,
    generation,
    read,
    scripted,
    spelled,
    text_of,
    toy_engine,
)
from tests.reference.scripted import scripted_answer
from traces.recording import RecordingReader
from traces.recording_writer import RecordingWriter


def swapping(**fields: object):
    """Two requests of 7 blocks each do not fit: the younger one is swapped out."""
    defaults = {"num_blocks": 10, "block_size": 4, "host_blocks": 10, "preemption": "swap"}
    return core_config(**(defaults | fields))


PROMPTS = [[1] * 6, [2] * 6]


def expected(prompt: list[int], num_tokens: int = 20) -> str:
    return spelled(scripted_answer(np.array(prompt, np.int32), num_tokens))


@pytest.mark.parametrize("max_open_plans", [1, 2])
async def test_swapped_request_goes_on_where_it_was_and_computes_nothing_again(max_open_plans):
    computed: list[int] = []
    config = swapping(max_open_plans=max_open_plans, prefix_cache=False)
    executor = scripted(config, pace=lambda plan: computed.append(plan.num_tokens))
    engine = toy_engine(config, executor)
    streams = [engine.open(generation(prompt, 20)) for prompt in PROMPTS]
    async with running(engine):
        for stream, prompt in zip(streams, PROMPTS, strict=True):
            assert text_of(await read(stream)) == expected(prompt)
    swaps = engine.counters.swaps
    assert swaps == engine.counters.preemptions > 0
    # Each plan that was open when its request was preempted is computed again, and nothing else.
    assert 2 * 25 <= sum(computed) <= 2 * 25 + swaps * max_open_plans
    memory = engine.memory()
    assert memory.held_blocks == memory.moving_blocks == memory.host_used_blocks == 0


async def test_recorded_transfers_overlap_steps(tmp_path):
    """A step is held until the transfer that began beside it has ended; the oldest of three has room to go on meanwhile."""
    config, gate, held = swapping(num_blocks=12), Gate(), MoveGate(out=True)
    writer = RecordingWriter(tmp_path / "run.jsonl", config=config, model="toy")
    engine = toy_engine(config, scripted(config, pace=gate, move_pace=held), writer)
    prompts = [[1] * 4, [2] * 6, [3] * 7]
    streams = [engine.open(generation(prompt, 20)) for prompt in prompts]
    async with running(engine):
        while not engine.memory().num_swapped:
            gate.let_go()
            await until(lambda: gate.waiting or engine.memory().num_swapped)
        await until(lambda: gate.waiting and held.entered.is_set())
        held.open()
        await until(lambda: engine.memory().moving_blocks == 0)
        assert gate.waiting
        gate.open()
        for stream, prompt in zip(streams, prompts, strict=True):
            assert text_of(await read(stream)) == expected(prompt)
    writer.close()
    with RecordingReader(writer.path) as reader:
        entries = list(reader.entries())
    steps = [entry.call for entry in entries if isinstance(entry.call, Commit)]
    first = next(entry.call for entry in entries if isinstance(entry.call, Transferred))
    around = [step for step in steps if step.started < first.ended < step.ended]
    assert len(around) == 1


async def test_failed_transfers_are_computed_instead(tmp_path, caplog):
    config = swapping()
    writer = RecordingWriter(tmp_path / "run.jsonl", config=config, model="toy")
    executor = scripted(config, move_fault=lambda number: ExecutorError("a lost page"))
    engine = toy_engine(config, executor, writer)
    streams = [engine.open(generation(prompt, 20)) for prompt in PROMPTS]
    async with running(engine):
        for stream, prompt in zip(streams, PROMPTS, strict=True):
            assert text_of(await read(stream)) == expected(prompt)
    writer.close()
    with RecordingReader(writer.path) as reader:
        decisions = [decision for entry in reader.entries() for decision in entry.decisions]
    assert any(isinstance(decision, SwapEnded) and not decision.ok for decision in decisions)
    assert not any(isinstance(d, SwapStarted) and d.direction == "in" for d in decisions)
    assert "a lost page" in caplog.text
    memory = engine.memory()
    assert memory.held_blocks == memory.host_used_blocks == 0


@pytest.mark.parametrize("out", [True, False], ids=["out", "in"])
async def test_fr_10_request_that_leaves_during_its_transfer_gives_everything_back(out):
    config, held = swapping(), MoveGate(out=out)
    engine = toy_engine(config, scripted(config, move_pace=held))
    streams = [engine.open(generation(prompt, 20)) for prompt in PROMPTS]
    async with running(engine):
        await until(held.entered.is_set)
        streams[1].abort()
        assert (await read(streams[1]))[-1].finish is FinishReason.ABORT
        assert engine.memory().moving_blocks > 0
        held.open()
        assert text_of(await read(streams[0])) == expected(PROMPTS[0])
        assert text_of(await read(engine.open(generation(PROMPTS[1], 20)))) == expected(PROMPTS[1])
    memory = engine.memory()
    assert memory.held_blocks == memory.host_used_blocks == memory.moving_blocks == 0


async def test_fr_10_request_that_leaves_while_it_lies_on_the_host_gives_its_blocks_back():
    config, gate = swapping(), Gate()
    engine = toy_engine(config, scripted(config, pace=gate))
    streams = [engine.open(generation(prompt, 20)) for prompt in PROMPTS]
    async with running(engine):
        while not engine.memory().num_swapped:
            gate.let_go()
            await until(lambda: gate.waiting or engine.memory().num_swapped)
        await until(lambda: engine.memory().moving_blocks == 0)
        assert engine.memory().host_used_blocks > 0
        streams[1].abort()
        assert engine.memory().host_used_blocks == 0
        gate.open()
        assert text_of(await read(streams[0])) == expected(PROMPTS[0])


@pytest.mark.parametrize("out", [True, False], ids=["out", "in"])
async def test_engine_that_stops_during_a_transfer_waits_for_it_and_holds_nothing(out):
    config, held = swapping(), MoveGate(out=out)
    engine = toy_engine(config, scripted(config, move_pace=held))
    streams = [engine.open(generation(prompt, 20)) for prompt in PROMPTS]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        await until(held.entered.is_set)
        engine.stop()
        await until(lambda: all(stream.ended for stream in streams))
        held.open()
    memory = engine.memory()
    assert memory.held_blocks == memory.host_used_blocks == memory.moving_blocks == 0


async def test_dead_block_copier_ends_every_stream_and_the_run():
    config = swapping()
    lost = MemoryError("lost")
    executor = scripted(config, move_fault=lambda number: lost)
    engine = toy_engine(config, executor)
    streams = [engine.open(generation(prompt, 20)) for prompt in PROMPTS]
    with pytest.raises(ExecutorError, match="the block copier died") as caught:
        await engine.run()
    assert caught.value.__cause__ is lost
    for stream in streams:
        assert (await read(stream))[-1].error == "the block copier died"


async def test_auto_records_both_estimates(tmp_path):
    costs = {"block_bytes": 1000, "link_bytes_per_s": 1e9, "prefill_tokens_per_s": 1e3}
    config = swapping(preemption="auto", swap_costs=costs)
    writer = RecordingWriter(tmp_path / "run.jsonl", config=config, model="toy")
    engine = toy_engine(config, scripted(config), writer)
    streams = [engine.open(generation(prompt, 20)) for prompt in PROMPTS]
    async with running(engine):
        for stream in streams:
            await read(stream)
    writer.close()
    with RecordingReader(writer.path) as reader:
        decisions = [decision for entry in reader.entries() for decision in entry.decisions]
    chosen = [decision for decision in decisions if isinstance(decision, Preempted)]
    assert chosen
    for one in chosen:
        assert one.mode == "swap"
        assert 0 < one.swap_ns < one.recompute_ns == one.num_tokens * 1_000_000


async def test_more_host_blocks_than_the_runner_has_are_refused():
    with pytest.raises(ConfigError, match="swap to 10 host blocks, but the model runner has 9"):
        toy_engine(swapping(), scripted(swapping(host_blocks=9)))
