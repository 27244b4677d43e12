"""Beam search of the live engine, on the default model, equals a plain one over the plain forward pass."""

import anyio
import numpy as np
import pytest
import torch

from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig
from engine.executor import SamplingParams
from engine.loop import Engine
from engine.requests import BeamSearch, FinishReason, Generation
from engine.runner import build_runner
from engine.tokenizer import Codec
from engine.weights.load import load_model
from sim.lockstep import replay_lockstep
from tests.reference.beam_search import plain_beam_search
from tests.reference.llama_reference import reference_logits
from traces.recording_writer import RecordingWriter

pytestmark = pytest.mark.model

WIDTH, MAX_TOKENS = 3, 4
PROMPTS = ("The three largest cities of France are", "2 + 2 =")


@pytest.fixture(scope="module")
def model():
    return load_model(None, "float32")


@pytest.fixture(scope="module")
def expected(model):
    codec = Codec(model.tokenizer)
    found = []
    for text in PROMPTS:
        prompt = codec.encode(text).tolist()
        best = plain_beam_search(
            lambda tokens, prompt=prompt: log_probs(model, [*prompt, *tokens]),
            WIDTH,
            MAX_TOKENS,
            codec.stop_tokens,
            1.0,
        )
        found.append([codec.decode(tokens) for tokens, _ in best])
    return found


async def answers(engine, generations):
    texts = [[""] * WIDTH for _ in generations]
    finishes = [[None] * WIDTH for _ in generations]

    async def read(place, generation):
        async for delta in engine.open(generation):
            texts[place][delta.index] += delta.text
            finishes[place][delta.index] = delta.finish or finishes[place][delta.index]

    async with anyio.create_task_group() as group:
        group.start_soon(engine.run)
        async with anyio.create_task_group() as readers:
            for place, generation in enumerate(generations):
                readers.start_soon(read, place, generation)
        engine.stop()
    return texts, finishes


@pytest.mark.parametrize("num_blocks", [200, 10])
async def test_beam_search_finds_what_a_plain_one_finds(model, expected, num_blocks, tmp_path):
    """Also where the pool is so tight that beams are preempted and computed again; and it can be replayed."""
    codec = Codec(model.tokenizer)
    prompts = [codec.encode(text) for text in PROMPTS]
    runner = build_runner(model, num_blocks=num_blocks, block_size=2, max_context=64)
    config = CoreConfig(
        memory=MemoryConfig(num_blocks=num_blocks, block_size=2),
        scheduler=SchedulerConfig(max_context=64, token_budget=32, max_batch=9),
    )
    recorder = RecordingWriter(tmp_path / "run", config=config, model="m")
    engine = Engine(runner, config, codec, model_name="m", recorder=recorder)
    generations = [
        Generation(
            prompt=prompt,
            max_tokens=MAX_TOKENS,
            sampling=SamplingParams(temperature=0),
            num_sequences=WIDTH,
            beam=BeamSearch(width=WIDTH),
        )
        for prompt in prompts
    ]
    texts, finishes = await answers(engine, generations)
    runner.close()
    recorder.close()
    said: list[str] = []
    assert replay_lockstep(tmp_path / "run", said.append) == 0, said
    assert (engine.counters.preemptions > 0) == (num_blocks < 20)
    assert engine.memory().held_blocks == 0
    assert texts == expected
    assert {end for ends in finishes for end in ends} <= {FinishReason.STOP, FinishReason.LENGTH}


async def test_answers_that_hold_a_stop_string_end_there_and_say_so(model, expected):
    codec = Codec(model.tokenizer)
    runner = build_runner(model, num_blocks=200, block_size=2, max_context=64)
    config = CoreConfig(
        memory=MemoryConfig(num_blocks=200, block_size=2),
        scheduler=SchedulerConfig(max_context=64, token_budget=32, max_batch=9),
    )
    best = expected[0][0]
    stop = best[len(best) // 2 :]
    generation = Generation(
        prompt=codec.encode(PROMPTS[0]),
        max_tokens=MAX_TOKENS,
        sampling=SamplingParams(temperature=0),
        num_sequences=WIDTH,
        beam=BeamSearch(width=WIDTH),
        stop=(stop,),
    )
    engine = Engine(runner, config, codec, model_name="m")
    [texts], [finishes] = await answers(engine, [generation])
    runner.close()
    assert texts == [text.split(stop)[0] for text in expected[0]]
    for text, finish in zip(expected[0], finishes, strict=True):
        assert finish is FinishReason.STOP or stop not in text
    assert finishes[0] is FinishReason.STOP


@torch.inference_mode()
def log_probs(model, history) -> np.ndarray:
    logits = reference_logits(model.shape, model.tensors, history, slice(len(history) - 1, None))
    return torch.log_softmax(logits[-1], dim=-1).numpy()
