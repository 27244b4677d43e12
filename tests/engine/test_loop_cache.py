"""The prefix cache, live: what is reported, what is shared with whom, and the field reports on memory under a running loop."""

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


def expected(prompt: list[int], num_tokens: int, index: int = 0) -> str:
    return spelled(scripted_answer(np.array(prompt, np.int32), num_tokens, index=index))


async def ask(engine, prompt, max_tokens, **fields) -> int:
    """Reads the whole answer, which must be right; how many tokens were cached."""
    stream = engine.open(generation(prompt, max_tokens, **fields))
    assert text_of(await read(stream)) == expected(prompt, max_tokens)
    return stream.num_cached


async def test_fr_01_prompt_that_is_wholly_cached_computes_something_and_keeps_its_chain():
    config = core_config(num_blocks=32, block_size=16, max_context=128)
    short = list(range(1, 33))
    long = [*short, *range(40, 56)]
    computed: list[int] = []
    engine = toy_engine(
        config, scripted(config, pace=lambda plan: computed.append(plan.num_tokens))
    )
    async with running(engine):
        assert await ask(engine, short, 4) == 0
        computed.clear()
        assert await ask(engine, short, 4) == 16
        assert computed[0] == 16
        assert await ask(engine, long, 4) == 32
        assert await ask(engine, long, 4) == 32
    assert engine.counters.prefix_hits_tokens == 16 + 32 + 32
    assert engine.counters.prefix_queries_tokens == 2 * 32 + 2 * 48


async def test_generated_tokens_are_found_by_the_next_turn_of_a_conversation():
    config = core_config(num_blocks=32, block_size=4, max_context=128)
    engine = toy_engine(config, scripted(config))
    prompt = [1, 2, 3, 4, 5, 6]
    async with running(engine):
        await ask(engine, prompt, 8)
        turn = [*prompt, *scripted_answer(np.array(prompt, np.int32), 8), 9, 9]
        # 13 positions were computed: the last token of an answer is never fed back.
        assert await ask(engine, turn, 2) == 12


async def test_cache_is_shared_only_under_equal_salt():
    config = core_config(num_blocks=32)
    engine = toy_engine(config, scripted(config))
    prompt = list(range(1, 14))
    async with running(engine):
        assert await ask(engine, prompt, 2, salt="a") == 0
        assert await ask(engine, prompt, 2, salt="b") == 0
        assert await ask(engine, prompt, 2) == 0
        assert await ask(engine, prompt, 2, salt="a") == 12


async def test_nothing_is_cached_where_the_cache_is_off():
    config = core_config(num_blocks=32, prefix_cache=False)
    engine = toy_engine(config, scripted(config))
    async with running(engine):
        for _ in range(2):
            assert await ask(engine, list(range(1, 14)), 2) == 0
    assert engine.memory().cached_blocks == 0


async def test_fr_02_cached_blocks_that_an_admission_pins_are_not_free_as_well():
    config = core_config(num_blocks=6, block_size=4, watermark=0.0)
    gate = Gate()
    engine = toy_engine(config, scripted(config, pace=gate))
    common = list(range(1, 13))
    async with running(engine):
        gate.let_go()
        await ask(engine, common, 1)
        other = engine.open(generation([50] * 8, 1))
        await in_thread(gate.wait_until_running, 1)
        waiting = engine.open(generation([*common, *range(60, 68)], 1))
        await anyio.wait_all_tasks_blocked()
        memory = engine.memory()
        assert (memory.free_blocks, memory.cached_blocks, memory.held_blocks) == (1, 3, 2)
        assert (memory.num_running, memory.num_waiting) == (1, 1)
        gate.open()
        await read(other)
        assert tokens_of(await read(waiting)) == 1
    assert waiting.num_cached == 12


async def test_fr_03_evicted_content_is_not_found_under_its_old_key():
    config = core_config(num_blocks=3, block_size=4)
    engine = toy_engine(config, scripted(config))
    x, y = list(range(1, 12)), [7] * 6
    async with running(engine):
        assert await ask(engine, x, 2) == 0
        assert await ask(engine, y, 2) == 0
        assert await ask(engine, x, 2) <= 4
        assert await ask(engine, y, 2) <= 4


@pytest.mark.parametrize("max_open_plans", [1, 2])
@pytest.mark.parametrize("token_budget", [4, 64])
@pytest.mark.parametrize("prefix_cache", [False, True])
async def test_fr_05_resumed_request_replays_its_prompt_and_what_it_said(
    token_budget, max_open_plans, prefix_cache
):
    config = core_config(
        num_blocks=8,
        block_size=4,
        token_budget=token_budget,
        max_batch=4,
        max_open_plans=max_open_plans,
        prefix_cache=prefix_cache,
    )
    engine = toy_engine(config, scripted(config))
    prompts = [[1] * 6, [2] * 6]
    streams = [engine.open(generation(prompt, 20)) for prompt in prompts]
    async with running(engine):
        for stream, prompt in zip(streams, prompts, strict=True):
            deltas = await read(stream)
            assert text_of(deltas) == expected(prompt, 20)
            assert tokens_of(deltas) == 20
            assert stream.num_prompt == 6
            assert stream.num_cached == 0
    assert engine.counters.preemptions > 0
    assert engine.memory().held_blocks == 0


@pytest.mark.parametrize("max_open_plans", [1, 2])
async def test_fr_06_swap_area_that_fills_up_under_several_choices_ends_nobody(max_open_plans):
    config = core_config(
        num_blocks=32,
        block_size=4,
        host_blocks=6,
        preemption="swap",
        token_budget=16,
        max_batch=16,
        max_open_plans=max_open_plans,
    )
    executor = scripted(config)
    engine = toy_engine(config, executor)
    prompts = [[n + 1] * 8 for n in range(12)]
    streams = [engine.open(generation(prompt, 40, num_sequences=2)) for prompt in prompts]
    async with running(engine):
        for stream, prompt in zip(streams, prompts, strict=True):
            deltas = await read(stream)
            for index in range(2):
                own = [delta for delta in deltas if delta.index == index]
                assert text_of(own) == expected(prompt, 40, index)
                assert own[-1].finish is FinishReason.LENGTH
    memory = engine.memory()
    assert engine.counters.preemptions > engine.counters.swaps
    assert memory.held_blocks == memory.host_used_blocks == memory.moving_blocks == 0
