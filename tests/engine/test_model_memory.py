"""The default model in float32, its first layers, under the live loop: no way of keeping memory changes a greedy token.

Prefix cache on and off, block sizes, pools from tight to ample, recompute and swap, four choices, two open plans: every
choice says what its prompt alone says, up to the first position where the two best logits are closer than 1e-4.
"""

from collections.abc import Iterator
from itertools import product

import anyio
import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from engine.core.config import CoreConfig
from engine.executor import SamplingParams
from engine.loop import Engine
from engine.requests import Generation
from engine.runner import build_runner
from engine.weights.load import LoadedModel, load_model
from tests.engine.drive import drive
from tests.engine.running import running, said
from tests.engine.toy import SpellingCodec, read
from tests.reference.llama_reference import reference_logits

pytestmark = pytest.mark.model

LAYERS = 8
"""Of thirty: what is kept in memory, and how, is the same in each."""
NEW_TOKENS = 16
TIE = 1e-4
LENGTHS = (3, 40, 61, 17)
"""Of what follows the common beginning."""
COMMON = 50
CHOICES = (1, 4, 2, 1)
ROUNDS = 2
"""Each prompt is asked for so often: the later ones find what the earlier ones left."""

Prompt = NDArray[np.int32]


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    """One thread computes: two that wait for each other are slow where something else runs beside the tests."""
    threads = torch.get_num_threads()
    whole = load_model(None, "float32")
    yield replace(whole, shape=replace(whole.shape, num_layers=LAYERS))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def prompts(model: LoadedModel) -> list[Prompt]:
    rng = np.random.default_rng(11)

    def draw(length: int) -> Prompt:
        return rng.integers(3, model.shape.vocab_size, length).astype(np.int32)

    common = draw(COMMON)
    return [np.concatenate([common, draw(length)]) for length in LENGTHS]


@pytest.fixture(scope="module")
def alone(model: LoadedModel, prompts: list[Prompt]) -> list[list[int]]:
    runner = build_runner(model, num_blocks=64, max_context=256, threads=1)
    return [drive(runner, [prompt], NEW_TOKENS)[0][0] for prompt in prompts]


def pool_size(block_size: int, room: str) -> int:
    """Blocks: what the largest request needs alone and a quarter more, or plenty for all."""
    needed = 0
    for length, n in zip(LENGTHS, CHOICES, strict=True):
        shared = (COMMON + length - 1) // block_size if n > 1 else 0
        own = -(-(COMMON + length + NEW_TOKENS) // block_size) - shared
        needed = max(needed, shared + n * own)
    return needed + needed // 4 if room == "tight" else 8 * needed


def assert_said(model: LoadedModel, prompt: Prompt, expected: list[int], told: list[int]) -> None:
    """Equal, but where the reference cannot tell the best token from the second."""
    assert len(told) == NEW_TOKENS
    if told == expected:
        return
    at = next(i for i, (one, other) in enumerate(zip(expected, told, strict=True)) if one != other)
    history = [*prompt.tolist(), *expected[:at]]
    logits = reference_logits(model.shape, model.tensors, history, slice(-1, None))[0]
    best = logits.max()
    assert best - logits[told[at]] < TIE
    assert best - logits[expected[at]] < TIE


async def ask_all(engine: Engine, prompts: list[Prompt]) -> list[tuple[int, dict[int, list[int]]]]:
    """(tokens found in the cache, tokens of each choice) of every request, all open at once, round after round."""
    answers: list[tuple[int, dict[int, list[int]]]] = []
    async with running(engine):
        for _ in range(ROUNDS):
            streams = [
                engine.open(
                    Generation(
                        prompt=prompt,
                        max_tokens=NEW_TOKENS,
                        sampling=SamplingParams(temperature=0.0),
                        ignore_eos=True,
                        num_sequences=n,
                    )
                )
                for prompt, n in zip(prompts, CHOICES, strict=True)
            ]
            for stream in streams:
                told = said(await read(stream))
                answers.append((stream.num_cached, told))
    return answers


async def check(
    model: LoadedModel,
    prompts: list[Prompt],
    alone: list[list[int]],
    *,
    block_size: int,
    room: str,
    prefix_cache: bool,
    preemption: str,
    max_open_plans: int,
    token_budget: int = 96,
) -> None:
    num_blocks = pool_size(block_size, room)
    host_blocks = num_blocks if preemption == "swap" else 0
    config = msgspec.convert(
        {
            "memory": {
                "num_blocks": num_blocks,
                "block_size": block_size,
                "prefix_cache": prefix_cache,
                "host_blocks": host_blocks,
            },
            "scheduler": {
                "max_context": 256,
                "token_budget": token_budget,
                "max_batch": 8,
                "preemption": preemption,
                "max_open_plans": max_open_plans,
            },
        },
        CoreConfig,
    )
    runner = build_runner(
        model,
        num_blocks=num_blocks,
        block_size=block_size,
        max_context=256,
        host_blocks=host_blocks,
        threads=1,
    )
    engine = Engine(runner, config, SpellingCodec(), model_name=model.name, check_every_step=True)
    with anyio.fail_after(200):
        answers = await ask_all(engine, prompts)
    runner.close()
    counters = engine.counters
    # Of blocks as large as answers so few are begun that nobody need give way.
    assert room == "tight" or counters.preemptions == 0
    assert counters.preemptions > 0 or room == "ample" or block_size > 32
    assert (counters.swaps > 0) == (counters.preemptions > 0 and preemption == "swap")
    assert any(cached for cached, _ in answers) == prefix_cache
    assert engine.memory().held_blocks == 0
    with torch.inference_mode():
        for at, (_, told) in enumerate(answers):
            which = at % len(prompts)
            assert len(told) == CHOICES[which]
            for tokens in told.values():
                assert_said(model, prompts[which], alone[which], tokens)


@pytest.mark.parametrize(
    ("block_size", "room", "prefix_cache", "preemption", "max_open_plans"),
    [
        (8, "tight", True, "swap", 2),
        (16, "tight", False, "recompute", 2),
        (32, "tight", True, "recompute", 1),
        (64, "ample", True, "swap", 2),
    ],
)
async def test_memory_changes_no_greedy_token(
    model, prompts, alone, block_size, room, prefix_cache, preemption, max_open_plans
):
    await check(
        model,
        prompts,
        alone,
        block_size=block_size,
        room=room,
        prefix_cache=prefix_cache,
        preemption=preemption,
        max_open_plans=max_open_plans,
    )


MATRIX = list(
    product(
        (8, 16, 32, 64), ("tight", "ample"), (True, False), ("recompute", "swap"), (1, 2), (9, 96)
    )
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block_size", "room", "prefix_cache", "preemption", "max_open_plans", "token_budget"), MATRIX
)
async def test_every_way_of_keeping_memory_changes_no_greedy_token(
    model, prompts, alone, block_size, room, prefix_cache, preemption, max_open_plans, token_budget
):
    await check(
        model,
        prompts,
        alone,
        block_size=block_size,
        room=room,
        prefix_cache=prefix_cache,
        preemption=preemption,
        max_open_plans=max_open_plans,
        token_budget=token_budget,
    )
