"""A seed holds whatever runs beside it (FR-12), on every backend: torch, the compiled CPU decoder, the GPU's kernels (interpreted here).

Also what else a request may ask of its draws: penalties, bias and log-probabilities are the same on CPU and GPU.
"""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from engine.executor import Sampled, SamplingParams, TokenLogprobs
from engine.models.compiled import CompiledLlama, refusal
from engine.models.llama import Llama
from engine.models.triton_llama import TritonLlama
from engine.runner import TorchRunner, build_runner
from engine.weights.load import load_model
from tests.engine.drive import GREEDY, drive
from tests.engine.tiny import VOCABULARY, Tiny, own_model_cache, write_tiny

KINDS = {"torch": Llama, "compiled": CompiledLlama, "triton": TritonLlama}
ROOM = 64
"""Blocks of a pool in which nobody is preempted."""
STEPS = 10
P = SamplingParams(seed=1234, temperature=0.9)
NEIGHBOURS = (
    SamplingParams(seed=1234, temperature=0.9),
    SamplingParams(seed=2**64 - 1, temperature=3.0, top_k=9),
    GREEDY,
    SamplingParams(seed=7, temperature=1.2, frequency_penalty=0.8, logit_bias=((40, 3.0),)),
)


def build(kind: str, folder: Path, block_size: int, tiny: Tiny) -> TorchRunner:
    compiled = kind == "compiled"
    model = load_model(
        write_tiny(folder / f"{kind}.gguf", tiny), "bfloat16" if compiled else "float32"
    )
    if compiled and (why := refusal(model, block_size)):
        pytest.skip(why)
    device = "cuda" if kind == "triton" else "cpu"
    return build_runner(
        model, num_blocks=ROOM, block_size=block_size, max_context=128, threads=1, device=device
    )


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[functools.partial[TorchRunner]]:
    folder = tmp_path_factory.mktemp("models")
    made: dict[tuple[str, int], TorchRunner] = {}

    def get(kind: str, block_size: int) -> TorchRunner:
        key = (kind, block_size)
        if key not in made:
            quant = Kind.Q4_1 if kind == "compiled" else Kind.F32
            size = {"hidden": 64, "ffn": 64, "layers": 1, "heads": 2, "kv_heads": 1}
            made[key] = build(kind, folder, block_size, Tiny(kind=quant, scale=0.2, **size))
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        own_model_cache(patch, folder)
        yield functools.partial(get)
    for runner in made.values():
        runner.close()


def prompts_of(*lengths: int) -> list[NDArray[np.int32]]:
    rng = np.random.default_rng(1)
    return [rng.integers(3, VOCABULARY, n).astype(np.int32) for n in lengths]


OWN, *OTHERS = prompts_of(29, 27, 6, 30, 17)


MIXES = {8: (4, {"token_budget": 17}), 16: (2, {"token_budget": 40}), 32: (1, {"open_plans": 1})}
"""Block size to (place among the neighbours, limits); the pool has two blocks more than one sequence needs."""


@pytest.mark.parametrize("block_size", MIXES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_seeds_tokens_are_the_same_in_every_batch(
    kind: str, block_size: int, runners: functools.partial[TorchRunner]
) -> None:
    runner = runners(kind, block_size)
    assert isinstance(runner._model, KINDS[kind])
    (alone,), _ = drive(runner, [OWN], STEPS, sampling=[P])
    assert len(set(alone)) > 3
    place, limits = MIXES[block_size]
    prompts, params = list(OTHERS), list(NEIGHBOURS)
    prompts.insert(place, OWN)
    params.insert(place, P)

    tight = -(-(len(OWN) + STEPS) // block_size) + 2
    mixed, scheduler = drive(runner, prompts, STEPS, sampling=params, num_blocks=tight, **limits)

    assert scheduler.num_preemptions > 0
    assert mixed[place] == alone


@pytest.mark.parametrize("kind", KINDS)
def test_equal_requests_with_other_seeds_do_not_become_equal(
    kind: str, runners: functools.partial[TorchRunner]
) -> None:
    params = [P, *(SamplingParams(seed=s, temperature=0.9) for s in range(3))]

    outputs, _ = drive(runners(kind, 16), [OWN[:5]] * 4, 4, sampling=params)

    assert len({tuple(tokens) for tokens in outputs}) == 4


ASKED = (
    SamplingParams(seed=1, repetition_penalty=1.6, logprobs=0),
    SamplingParams(seed=2, presence_penalty=1.5, frequency_penalty=-0.4, top_p=0.9),
    SamplingParams(temperature=0.0, logit_bias=((3, 5.5), (90, -100.0)), logprobs=4),
    SamplingParams(seed=4, min_tokens=6, stop_ids=(1, 2, 5), logit_bias=((2, 60.0),), logprobs=2),
    SamplingParams(seed=5, frequency_penalty=0.9, min_p=0.05, top_k=30, logprobs=20),
)


def reported(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch, **options: int
) -> tuple[list[list[int]], dict[tuple[int, int], TokenLogprobs], int]:
    """(tokens, log-probabilities by request and position, preemptions) of `ASKED`."""
    found: dict[tuple[int, int], TokenLogprobs] = {}
    execute = runner.execute

    def listening(plan, new) -> Sampled:
        sampled = execute(plan, new)
        requests = plan.requests[plan.samples].tolist()
        for at, said in sampled.logprobs:
            found[requests[at], int(plan.sampled_positions[at])] = said
        return sampled

    with monkeypatch.context() as patch:
        patch.setattr(runner, "execute", listening)
        outputs, scheduler = drive(runner, [OWN, *OTHERS], STEPS, sampling=list(ASKED), **options)
    return outputs, found, scheduler.num_preemptions


def test_penalties_bias_and_log_probabilities_are_the_same_on_cpu_and_gpu(
    runners: functools.partial[TorchRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    want, said, _ = reported(runners("torch", 8), monkeypatch)
    plain, _ = drive(runners("torch", 8), [OWN, *OTHERS], STEPS)
    assert all(a != b for a, b in zip(want, plain, strict=True))
    assert not {1, 2, 5} & set(want[3][:6])
    assert want[3][6:] == [2] * (STEPS - 6)

    tight = {"num_blocks": 7, "token_budget": 40}
    got, heard, preemptions = reported(runners("triton", 8), monkeypatch, **tight)

    assert preemptions > 0
    assert got == want
    assert heard.keys() == said.keys()
    for key, own in heard.items():
        assert own.top_ids == said[key].top_ids
        assert own.logprob == pytest.approx(said[key].logprob, abs=1e-4)
        assert own.top_logprobs == pytest.approx(said[key].top_logprobs, abs=1e-4)
