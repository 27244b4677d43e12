"""The runner on small random models: shapes, chunking, preemption, rewinding, rows reused, and failures of one row."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.core.errors import ConfigError, ExecutorError
from engine.core.ids import RequestId
from engine.core.plan import Plan
from engine.executor import NewSequence, SamplingParams
from engine.models.attention import TorchAttention
from engine.models.llama import Llama
from engine.models.rotary import Rotary
from engine.runner import TorchRunner, build_runner
from engine.weights.load import LoadedModel, load_model
from tests.engine.drive import GREEDY, drive
from tests.engine.tiny import VOCABULARY, Tiny, own_model_cache, write_tiny
from tests.reference.llama_reference import reference_logits

SHAPES = {
    "grouped": Tiny(),
    "one KV head": Tiny(heads=8, kv_heads=1, head_size=16, hidden=96, ffn=160),
    "no groups": Tiny(heads=3, kv_heads=3, head_size=32, hidden=64, ffn=64),
    "uneven head": Tiny(heads=5, kv_heads=5, head_size=24, hidden=80, ffn=112, layers=3),
    "untied": Tiny(heads=6, kv_heads=2, head_size=16, hidden=64, ffn=96, tied=False),
    "biases": Tiny(biases=True, heads=4, kv_heads=2, head_size=16, hidden=64, ffn=96),
    "qwen2": Tiny(architecture="qwen2", biases=True, head_size=16, hidden=64, ffn=96),
    "rotary factors": Tiny(rope_factors=True, head_size=16, hidden=64, ffn=96),
    "one layer": Tiny(layers=1, heads=1, kv_heads=1, head_size=8, hidden=8, ffn=16),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_model_cache(monkeypatch, tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    return load_model(write_tiny(tmp_path / "t.gguf", Tiny(scale=0.15)), "float32")


@pytest.fixture
def make_runner() -> Iterator[Callable[..., TorchRunner]]:
    """`build_runner` for small models: one thread is enough, and every runner is closed at the end."""
    made = []

    def make(model: LoadedModel, **settings: Any) -> TorchRunner:
        made.append(build_runner(model, threads=1, **settings))
        return made[-1]

    yield make
    for runner in made:
        runner.close()


def random_prompts(*lengths: int, seed: int = 0) -> list[NDArray[np.int32]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCABULARY, n).astype(np.int32) for n in lengths]


def greedy(model: LoadedModel, prompt: NDArray[np.int32], steps: int) -> list[int]:
    """The reference's own greedy tokens; the models here have no near-ties within these steps."""
    ids = prompt.tolist()
    for _ in range(steps):
        logits = reference_logits(model.shape, model.tensors, ids, slice(-1, None))[0]
        best, second = logits.topk(2).values
        assert best - second > 1e-5
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


def plan(step: int, **columns: list[object]) -> Plan:
    """A plan by hand: rows, starts, counts, samples, and deltas as (row, column, block)."""
    deltas = np.array(columns.get("deltas", []), np.int32).reshape(-1, 3)
    rows = np.array(columns["rows"], np.int32)
    return Plan(
        step=step,
        rows=rows,
        requests=rows.astype(np.int64),
        starts=np.array(columns["starts"], np.int32),
        counts=np.array(columns["counts"], np.int32),
        samples=np.array(columns["samples"], bool),
        num_decodes=int(columns.get("num_decodes", 0)),  # type: ignore[call-overload]
        admitted=(),
        delta_rows=deltas[:, 0],
        delta_cols=deltas[:, 1],
        delta_blocks=deltas[:, 2],
    )


def gathering_runner(model: LoadedModel, num_blocks: int, block_size: int) -> TorchRunner:
    """A runner on torch's own attention, whatever this machine would choose."""
    rotary = Rotary(model.shape, 256, model.tensors.get("rope_factors"))
    attention = TorchAttention(model.shape, rotary, num_blocks, block_size, torch.float32)
    return TorchRunner(
        Llama(model.shape, model.tensors, attention),
        num_blocks=num_blocks,
        block_size=block_size,
        max_context=256,
        vocab_size=VOCABULARY,
    )


@pytest.mark.parametrize("backend", ["default", "gathering"])
@pytest.mark.parametrize("block_size", [8, 16])
@pytest.mark.parametrize("tiny", SHAPES.values(), ids=SHAPES.keys())
def test_every_shape_of_the_family_equals_the_reference(
    tiny: Tiny,
    block_size: int,
    backend: str,
    tmp_path: Path,
    make_runner: Callable[..., TorchRunner],
) -> None:
    model = load_model(write_tiny(tmp_path / "t.gguf", tiny), "float32")
    if backend == "default":
        runner = make_runner(model, num_blocks=64, block_size=block_size)
    else:
        runner = gathering_runner(model, 64, block_size)
    prompts = random_prompts(1, block_size, 30)

    outputs, _ = drive(runner, prompts, 10, token_budget=20)

    assert outputs == [greedy(model, prompt, 10) for prompt in prompts]


@pytest.mark.parametrize("open_plans", [1, 2])
@pytest.mark.parametrize("num_blocks", [9, 12, 200])
@pytest.mark.parametrize("token_budget", [7, 2048])
def test_chunking_preemption_and_open_plans_change_no_token(
    open_plans: int,
    num_blocks: int,
    token_budget: int,
    model: LoadedModel,
    make_runner: Callable[..., TorchRunner],
) -> None:
    runner = make_runner(model, num_blocks=num_blocks, block_size=8)
    prompts = random_prompts(6, 25, 1, 40, 8, 17)

    outputs, scheduler = drive(
        runner,
        prompts,
        24,
        num_blocks=num_blocks,
        token_budget=token_budget,
        open_plans=open_plans,
    )

    assert (scheduler.num_preemptions > 0) == (num_blocks < 100)
    assert outputs == [greedy(model, prompt, 24) for prompt in prompts]


def test_seeded_draws_survive_chunking_preemption_and_neighbours(
    model: LoadedModel, make_runner: Callable[..., TorchRunner]
) -> None:
    prompts = random_prompts(6, 25, 1, 40, 8, 17)
    params = [SamplingParams(temperature=1.5, top_p=0.95, seed=i) for i in range(6)]
    runner = make_runner(model, num_blocks=200, block_size=8)
    alone = [
        drive(runner, [prompt], 24, sampling=[own])[0][0]
        for prompt, own in zip(prompts, params, strict=True)
    ]
    others = [SamplingParams(temperature=0.3, seed=9), *params[1:]]

    tight, scheduler = drive(runner, prompts, 24, sampling=others, num_blocks=9, token_budget=11)

    assert scheduler.num_preemptions > 0
    assert tight[1:] == alone[1:]
    assert tight[0] != alone[0]


def test_equal_prompts_with_different_seeds_differ(
    model: LoadedModel, make_runner: Callable[..., TorchRunner]
) -> None:
    prompt = random_prompts(12)[0]
    params = [SamplingParams(temperature=2.0, seed=i) for i in range(4)]

    outputs, _ = drive(make_runner(model, num_blocks=50), [prompt] * 4, 16, sampling=params)

    assert len({tuple(output) for output in outputs}) == 4


def test_discarded_result_is_drawn_again_when_its_position_is_computed_again(
    model: LoadedModel, make_runner: Callable[..., TorchRunner]
) -> None:
    runner = make_runner(model, num_blocks=8, block_size=8)
    prompt = random_prompts(5)[0]
    new = [NewSequence(0, RequestId(0), prompt, SamplingParams(temperature=1.0, seed=3))]
    whole = {"rows": [0], "starts": [0], "counts": [5], "samples": [True]}
    decode = {"rows": [0], "starts": [5], "counts": [1], "samples": [True], "num_decodes": 1}
    first = runner.execute(plan(0, **whole, deltas=[(0, 0, 2)]), new).tokens
    second = runner.execute(plan(1, **decode), []).tokens
    # preempted: `second` is discarded, and the known six tokens are computed again elsewhere
    again = {"rows": [0], "starts": [0], "counts": [6], "samples": [True]}

    redrawn = runner.execute(plan(2, **again, deltas=[(0, 0, 5)]), []).tokens

    assert redrawn.tolist() == second.tolist()
    assert first.tolist() == runner.execute(plan(3, **whole), []).tokens.tolist()


def test_row_taken_over_forgets_its_last_owner(
    model: LoadedModel, make_runner: Callable[..., TorchRunner]
) -> None:
    runner = make_runner(model, num_blocks=8, block_size=8)
    long, short = random_prompts(20, 3)
    runner.execute(
        plan(
            0,
            rows=[0],
            starts=[0],
            counts=[20],
            samples=[True],
            deltas=[(0, 0, 1), (0, 1, 2), (0, 2, 3)],
        ),
        [NewSequence(0, RequestId(0), long, SamplingParams(temperature=1.0, seed=1))],
    )

    sampled = runner.execute(
        plan(1, rows=[0], starts=[0], counts=[3], samples=[True], deltas=[(0, 0, 4)]),
        [NewSequence(0, RequestId(1), short, GREEDY)],
    )

    assert sampled.tokens.tolist() == greedy(model, short, 1)


def test_chunks_that_do_not_end_a_prompt_sample_nothing(
    model: LoadedModel, make_runner: Callable[..., TorchRunner]
) -> None:
    runner = make_runner(model, num_blocks=8, block_size=8)
    prompt = random_prompts(9)[0]

    first = runner.execute(
        plan(0, rows=[0], starts=[0], counts=[4], samples=[False], deltas=[(0, 0, 6)]),
        [NewSequence(0, RequestId(0), prompt, GREEDY)],
    )
    second = runner.execute(
        plan(1, rows=[0], starts=[4], counts=[5], samples=[True], deltas=[(0, 1, 0)]), []
    )

    assert first.tokens.tolist() == []
    assert second.tokens.tolist() == greedy(model, prompt, 1)


def test_rows_and_sequences_grow_past_the_first_arrays(
    model: LoadedModel, make_runner: Callable[..., TorchRunner]
) -> None:
    runner = make_runner(model, num_blocks=200, block_size=8)
    prompts = random_prompts(*[200, *[2] * 40])

    outputs, _ = drive(runner, prompts, 56)

    assert outputs[0] == greedy(model, prompts[0], 56)
    assert outputs[40] == greedy(model, prompts[40], 56)


@pytest.mark.parametrize("backend", ["default", "gathering"])
def test_row_that_is_not_finite_fails_alone(
    backend: str, tmp_path: Path, make_runner: Callable[..., TorchRunner]
) -> None:
    """Token 5's embedding is damaged: whoever says it fails, its blocks are reused, and nobody else notices."""
    tiny = Tiny(scale=0.15, tied=False)
    model = load_model(write_tiny(tmp_path / "t.gguf", tiny), "float32")
    broken = load_model(write_tiny(tmp_path / "t.gguf", tiny), "float32")
    broken.tensors["embed"] = broken.tensors["embed"].clone()
    broken.tensors["embed"][5] = torch.nan
    runner = (
        make_runner(broken, num_blocks=16, block_size=8)
        if backend == "default"
        else gathering_runner(broken, 16, 8)
    )
    good = [p[p != 5] for p in random_prompts(20, 11)]
    bad = np.full(14, 5, np.int32)
    table = [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 3), (1, 1, 4), (2, 0, 5), (2, 1, 6)]
    new = [NewSequence(i, RequestId(i), p, GREEDY) for i, p in enumerate([good[0], bad, good[1]])]

    mixed = runner.execute(
        plan(
            0,
            rows=[0, 1, 2],
            starts=[0] * 3,
            counts=[len(good[0]), 14, len(good[1])],
            samples=[True] * 3,
            deltas=table,
        ),
        new,
    )
    after = runner.execute(
        plan(1, rows=[3], starts=[0], counts=[3], samples=[True], deltas=[(3, 0, 4)]),
        [NewSequence(3, RequestId(3), good[0][:3], GREEDY)],
    )
    decode = runner.execute(
        plan(
            2,
            rows=[3, 0],
            starts=[3, len(good[0])],
            counts=[1, 1],
            samples=[True, True],
            num_decodes=2,
        ),
        [],
    )

    assert [index for index, _ in mixed.failures] == [1]
    assert "not finite" in mixed.failures[0][1]
    assert mixed.tokens.tolist() == [greedy(model, good[0], 1)[0], 0, greedy(model, good[1], 1)[0]]
    assert after.failures == decode.failures == ()
    assert [int(after.tokens[0]), int(decode.tokens[0])] == greedy(model, good[0][:3], 2)
    assert int(decode.tokens[1]) == greedy(model, good[0], 2)[1]


def test_bfloat16_stays_near_float32_on_every_shape(
    tmp_path: Path, make_runner: Callable[..., TorchRunner]
) -> None:
    for i, tiny in enumerate(SHAPES.values()):
        path = write_tiny(tmp_path / f"{i}.gguf", tiny)
        half, prompts = load_model(path, "bfloat16"), random_prompts(30, 9)
        outputs, _ = drive(make_runner(half, num_blocks=64), prompts, 12)
        for prompt, output in zip(prompts, outputs, strict=True):
            history = [*prompt.tolist(), *output[:-1]]
            logits = reference_logits(
                half.shape, half.tensors, history, slice(len(prompt) - 1, None)
            )
            chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
            assert (logits.amax(-1) - chosen < 0.05 * logits.std()).all()


def test_more_threads_change_no_token(model: LoadedModel) -> None:
    runner = build_runner(model, num_blocks=12, block_size=8, threads=3)
    prompts = random_prompts(6, 25, 1, 40)

    outputs, _ = drive(runner, prompts, 12)

    runner.close()
    assert outputs == [greedy(model, prompt, 12) for prompt in prompts]


def test_closed_runner_fails_plainly(
    model: LoadedModel, make_runner: Callable[..., TorchRunner]
) -> None:
    runner = make_runner(model, num_blocks=8)
    runner.close()
    runner.close()

    with pytest.raises(ExecutorError, match="closed"):
        runner.execute(plan(0, rows=[0], starts=[0], counts=[1], samples=[True]), [])


def test_pool_is_sized_by_bytes_and_never_past_what_rows_can_use(
    model: LoadedModel, make_runner: Callable[..., TorchRunner]
) -> None:
    block_bytes = 16 * 2 * 2 * 2 * 64 * 4

    assert make_runner(model, pool_bytes=10 * block_bytes + 5).num_blocks == 10
    assert make_runner(model, max_context=100, max_batch=4).num_blocks == 25
    with pytest.raises(
        ConfigError, match=f"room for 5 bytes, but one block of 16 tokens takes {block_bytes}"
    ):
        make_runner(model, pool_bytes=5)


@pytest.mark.parametrize("context", [0, 257])
def test_context_outside_the_models_is_refused(
    context: int, model: LoadedModel, make_runner: Callable[..., TorchRunner]
) -> None:
    with pytest.raises(ConfigError, match=f"max_context is {context}; t allows 1 to 256"):
        make_runner(model, max_context=context)
