"""The engine on the Triton backend, interpreted (natively by `make gpu`): the CPU backend's tokens, whatever shares the steps."""

import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig
from engine.core.errors import ConfigError
from engine.executor import SamplingParams
from engine.loop import Engine
from engine.models import device
from engine.models.accelerated import largest_step
from engine.models.device import find_accelerator
from engine.models.llama import Llama
from engine.models.rotary import Rotary
from engine.models.triton_attention import TritonAttention
from engine.models.triton_llama import TritonLlama
from engine.requests import Generation
from engine.runner import TorchRunner, build_runner
from engine.weights.load import LoadedModel, load_model
from tests.engine.drive import GREEDY, drive
from tests.engine.tiny import VOCABULARY, Tiny, own_model_cache, write_tiny
from tests.engine.toy import SpellingCodec, read

SHAPES = {
    "two layers": Tiny(heads=3, kv_heads=1, hidden=96, ffn=64, scale=0.2),
    "heads of 80": Tiny(layers=1, heads=2, kv_heads=2, head_size=80, hidden=64, ffn=64, scale=0.2),
    "biases": Tiny(
        layers=1,
        architecture="qwen2",
        biases=True,
        heads=2,
        kv_heads=1,
        hidden=64,
        ffn=96,
        scale=0.2,
    ),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_model_cache(monkeypatch, tmp_path)


def tiny_model(folder: Path, tiny: Tiny) -> LoadedModel:
    return load_model(write_tiny(folder / "t.gguf", tiny), "float32")


def prompts_of(*lengths: int, seed: int = 0) -> list[NDArray[np.int32]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCABULARY, n).astype(np.int32) for n in lengths]


def both(model: LoadedModel, **options: int) -> tuple[TorchRunner, TorchRunner]:
    return build_runner(model, **options), build_runner(model, device="cuda", **options)


@pytest.mark.parametrize("name", SHAPES)
def test_greedy_tokens_are_the_cpu_backends(name: str, tmp_path: Path) -> None:
    cpu, gpu = both(tiny_model(tmp_path, SHAPES[name]), num_blocks=40, block_size=8)
    prompts = prompts_of(1, 9, 20)
    want, _ = drive(cpu, prompts, 4)
    got, _ = drive(gpu, prompts, 4)
    assert got == want


def test_chunks_preemption_and_two_open_plans_change_no_token(tmp_path: Path) -> None:
    cpu, gpu = both(tiny_model(tmp_path, SHAPES["two layers"]), num_blocks=4, block_size=8)
    prompts = prompts_of(6, 7, 5)
    want, _ = drive(cpu, prompts, 5, token_budget=11)
    got, scheduler = drive(gpu, prompts, 5, token_budget=11)
    assert scheduler.num_preemptions > 0
    assert got == want


def test_draws_are_the_cpu_backends_and_ignore_neighbours(tmp_path: Path) -> None:
    cpu, gpu = both(tiny_model(tmp_path, SHAPES["two layers"]), num_blocks=64, block_size=16)
    prompts = prompts_of(4, 11, 7, 2)
    params = [
        SamplingParams(seed=2**63 + 5),
        SamplingParams(temperature=0.7, top_p=0.8, seed=1),
        SamplingParams(temperature=1.6, top_k=12, seed=2),
        GREEDY,
    ]
    want, _ = drive(cpu, prompts, 4, sampling=params)
    got, _ = drive(gpu, prompts, 4, sampling=params)
    alone, _ = drive(gpu, prompts[1:2], 4, sampling=params[1:2])
    assert got == want
    assert alone[0] == want[1]


def test_steps_of_decodes_are_padded_to_a_bucket_and_rows_beyond_are_not(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, SHAPES["two layers"])
    cpu = build_runner(model, num_blocks=64, block_size=16)
    accelerator = find_accelerator()
    rotary = Rotary(model.shape, 64)
    attention = TritonAttention(model.shape, rotary, 64, 16, torch.float32, accelerator)
    tensors = {name: x.to(accelerator.device) for name, x in model.tensors.items()}
    decoder = TritonLlama(Llama(model.shape, tensors, attention), attention, buckets=(3,))
    padded = TorchRunner(
        decoder, num_blocks=64, block_size=16, max_context=64, vocab_size=VOCABULARY
    )
    for prompts in (prompts_of(5, 9), prompts_of(3, 8, 2, 6)):
        want, _ = drive(cpu, prompts, 3)
        got, _ = drive(padded, prompts, 3)
        assert got == want


def test_the_largest_step_runs_in_one_block(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, Tiny(layers=1))
    accelerator = find_accelerator()
    rotary = Rotary(model.shape, 48)
    attention = TritonAttention(model.shape, rotary, 1, 8, torch.float32, accelerator)
    tensors = {name: x.to(accelerator.device) for name, x in model.tensors.items()}
    step = largest_step(step_tokens=50, max_batch=3, max_context=48, block_size=8)
    logits = Llama(model.shape, tensors, attention).forward(step)
    assert logits.shape == (3, VOCABULARY)
    assert len(step.ids) == 50


def test_what_the_kernels_cannot_serve_is_refused(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, Tiny(head_size=16, hidden=64, ffn=64))
    with pytest.raises(ConfigError, match="heads of 16 elements"):
        build_runner(model, num_blocks=4, device="cuda")
    model = tiny_model(tmp_path, Tiny())
    with pytest.raises(ConfigError, match="block_size is 24"):
        build_runner(model, num_blocks=4, block_size=24, device="cuda")


async def streamed(
    runner: TorchRunner, generations: list[Generation], preemption: str = "recompute"
) -> tuple[list[list[str]], Engine]:
    """The texts of each generation's choices, all running at once through the live engine."""
    config = CoreConfig(
        memory=MemoryConfig(
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            host_blocks=runner.host_blocks,
        ),
        scheduler=SchedulerConfig(
            max_context=64, token_budget=32, max_batch=8, preemption=preemption
        ),
    )
    engine = Engine(runner, config, SpellingCodec(), model_name="tiny")
    texts = [[""] * own.num_sequences for own in generations]

    async def follow(i: int) -> None:
        for delta in await read(engine.open(generations[i])):
            assert delta.error is None
            texts[i][delta.index] += delta.text

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        async with anyio.create_task_group() as streams:
            for i in range(len(generations)):
                streams.start_soon(follow, i)
        engine.stop()
    return texts, engine


def drawing(prompt: NDArray[np.int32], seed: int, max_tokens: int = 4, **rest: int) -> Generation:
    params = SamplingParams(seed=seed, temperature=0.9, top_p=0.95)
    return Generation(
        prompt=prompt, max_tokens=max_tokens, sampling=params, ignore_eos=True, **rest
    )


def take_turns(runner: TorchRunner) -> list[str]:
    """Lets the runner's threads in one at a time, as the interpreter needs, which patches Triton's language while a kernel runs.

    Returns the names of what was called, as it grows.
    """
    turn, calls = threading.Lock(), []

    def guarded(name: str) -> Callable[..., object]:
        method = getattr(runner, name)

        def call(*args: object) -> object:
            calls.append(name)
            with turn:
                return method(*args)

        return call

    for name in ("execute", "copy_out", "copy_in"):
        setattr(runner, name, guarded(name))
    return calls


async def test_the_live_engine_streams_the_same_text_from_either_backend(tmp_path: Path) -> None:
    cpu, gpu = both(tiny_model(tmp_path, SHAPES["two layers"]), num_blocks=32, block_size=8)
    generations = [drawing(p, i) for i, p in enumerate(prompts_of(4, 13, 7))]
    want, _ = await streamed(cpu, generations)
    assert all(text.count("<") == 4 for (text,) in want)
    assert (await streamed(gpu, generations))[0] == want


async def test_choices_that_share_a_prompts_last_block_are_the_same_on_either_backend(
    tmp_path: Path,
) -> None:
    cpu, gpu = both(tiny_model(tmp_path, SHAPES["biases"]), num_blocks=32, block_size=8)
    generations = [drawing(prompts_of(5)[0], 3, num_sequences=3)]
    want, _ = await streamed(cpu, generations)
    assert len(set(want[0])) > 1
    assert (await streamed(gpu, generations))[0] == want


async def test_swapped_sequences_go_on_where_they_were(tmp_path: Path) -> None:
    cpu, gpu = both(
        tiny_model(tmp_path, SHAPES["biases"]), num_blocks=5, block_size=8, host_blocks=12
    )
    generations = [drawing(p, i, max_tokens=9) for i, p in enumerate(prompts_of(7, 6, 5))]
    want, _ = await streamed(cpu, generations)
    calls = take_turns(gpu)
    got, _ = await streamed(gpu, generations, preemption="swap")
    assert "copy_out" in calls
    assert "copy_in" in calls
    assert got == want


def test_a_gpu_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="--device cuda was asked for"):
        find_accelerator()
