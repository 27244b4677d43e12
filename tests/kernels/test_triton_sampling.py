"""Sampling on the device against float64, token for token."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sampling.adjust import IN_PROMPT
from kernels.sampling.draw import Drawn, SamplingColumns, draw, top_logprobs
from kernels.sampling.philox import philox
from tests.kernels.device import DEVICE, ints
from tests.reference.token_draw import Params, logprob
from tests.reference.token_draw import draw as reference_draw

CHUNK = 128


def columns(rows: list[Params], vocab: int) -> SamplingColumns:
    """What the runner would build: counts and biases of the rows that have any."""
    penalised = [
        i for i, p in enumerate(rows) if (p.repetition, p.presence, p.frequency) != (1, 0, 0)
    ]
    counts = np.zeros((len(penalised) + 1, vocab), np.int32)
    count_row = np.full(len(rows), -1, np.int32)
    for place, i in enumerate(penalised):
        count_row[i] = place
        np.add.at(counts[place], list(rows[i].output), 1)
        counts[place, list(set(rows[i].prompt))] += IN_PROMPT
    bias = [(t, v) for p in rows for t, v in p.bias.items()]

    def floats(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor([getattr(p, name) for p in rows], dtype=dtype, device=DEVICE)

    seeds = np.array([p.seed for p in rows], np.uint64).view(np.int64)
    return SamplingColumns(
        temperature=floats("temperature"),
        top_k=ints([p.top_k for p in rows]),
        top_p=floats("top_p"),
        min_p=floats("min_p"),
        seed=torch.from_numpy(seeds).to(DEVICE),
        counter=ints([p.position for p in rows], torch.int64),
        repetition=floats("repetition"),
        presence=floats("presence", torch.float64),
        frequency=floats("frequency", torch.float64),
        count_row=ints(count_row),
        counts=ints(counts),
        bias_start=ints(np.cumsum([0, *(len(p.bias) for p in rows)])),
        bias_token=ints([t for t, _ in bias]),
        bias_value=torch.tensor([v for _, v in bias], dtype=torch.float32, device=DEVICE),
    )


def drawn(logits: np.ndarray, rows: list[Params]) -> Drawn:
    return draw(torch.from_numpy(logits).to(DEVICE), columns(rows, logits.shape[1]), chunk=CHUNK)


def logits_of(seed: int, rows: int, vocab: int, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * spread).astype(np.float32)


def assert_same_tokens(logits: np.ndarray, rows: list[Params]) -> None:
    got = drawn(logits, rows)
    want = [reference_draw(x, p) for x, p in zip(logits, rows, strict=True)]
    assert got.token.tolist() == want
    expected = [logprob(x, t) for x, t in zip(logits, want, strict=True)]
    np.testing.assert_allclose(got.logprob.cpu(), expected, rtol=1e-5, atol=1e-5)
    assert got.finite.all()


@triton.jit
def words_kernel(key_ptr, counter_ptr, out_ptr):
    i = tl.program_id(0)
    first, second = philox(tl.load(key_ptr + i), tl.load(counter_ptr + i))
    tl.store(out_ptr + 2 * i, first.to(tl.int64))
    tl.store(out_ptr + 2 * i + 1, second.to(tl.int64))


def test_philox_gives_the_published_words():
    # known answers of the authors' Random123 for the zero key and counter
    out = ints([0, 0], torch.int64)
    words_kernel[(1,)](ints([0], torch.int64), ints([0], torch.int64), out)
    assert out.tolist() == [0x6627E8D5, 0xE169C58D]


@pytest.mark.parametrize("vocab", [1, 127, 128, 129, 300])
def test_plain_draws_are_the_reference_for_any_vocabulary(vocab):
    rows = [Params(seed=i * 0x1234567_89ABCDEF % 2**64, position=i) for i in range(4)]
    assert_same_tokens(logits_of(vocab, 4, vocab), rows)


FILTERS = {
    "greedy": {"temperature": 0.0},
    "top_k_1": {"top_k": 1},
    "cold": {"temperature": 0.2},
    "hot": {"temperature": 5.0},
    "top_k": {"top_k": 7},
    "top_k_beyond_vocabulary": {"top_k": 5000},
    "top_p": {"top_p": 0.8},
    "top_p_of_almost_nothing": {"top_p": 1e-6},
    "min_p": {"min_p": 0.2},
    "all_filters": {"temperature": 1.7, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "penalties": {
        "repetition": 1.5,
        "presence": 0.7,
        "frequency": 0.4,
        "prompt": (1, 2, 2),
        "output": (2, 5, 5, 9),
    },
    "presence_alone": {"presence": 4.0, "output": tuple(range(40))},
    "bias": {"bias": {3: 8.0, 100: -50.0, 150: 6.0}},
    "penalty_then_bias": {"repetition": 3.0, "output": (3,), "bias": {3: 9.0}},
    "forbidden": {"temperature": 4.0, "bias": dict.fromkeys(range(0, 170, 2), -1e30)},
}


@pytest.mark.parametrize("name", FILTERS)
def test_each_filter_gives_the_reference(name):
    rows = [Params(seed=7, position=p, **FILTERS[name]) for p in range(4)]
    assert_same_tokens(logits_of(3, 4, 170), rows)


def test_top_k_and_top_p_keep_whole_ties():
    logits = np.zeros((6, 100), np.float32)
    logits[:, 40:] = -1.0
    rows = [Params(top_k=3, seed=1, position=p) for p in range(3)]
    rows += [Params(top_p=0.1, seed=2, position=p) for p in range(3)]
    assert_same_tokens(logits, rows)
    assert len(set(drawn(logits, rows).token.tolist())) > 2


def test_greedy_takes_the_lowest_id_of_equals():
    logits = np.zeros((1, 200), np.float32)
    logits[0, [70, 130, 199]] = 2.0
    assert drawn(logits, [Params(temperature=0.0)]).token.tolist() == [70]


def test_negative_zero_ties_with_zero():
    logits = np.full((18, 70), -9.0, np.float32)
    logits[:, 5], logits[:, 65] = 0.0, -0.0
    rows = [Params(top_k=1), Params(temperature=0.0)]
    rows += [Params(top_k=2, seed=5, position=p) for p in range(8)]
    rows += [Params(top_p=0.3, seed=11, position=p) for p in range(8)]
    assert_same_tokens(logits, rows)
    assert set(drawn(logits, rows).token[10:].tolist()) == {5, 65}


def test_a_draw_does_not_depend_on_its_neighbours():
    logits = logits_of(5, 6, 150)
    rows = [
        Params(temperature=0.9, top_p=0.9, seed=1234, position=17),
        Params(temperature=0.0),
        Params(seed=99, top_k=5),
        Params(seed=1234, position=18, output=(4,), presence=2.0),
        Params(min_p=0.3, seed=4),
        Params(bias={2: 5.0}),
    ]
    together = drawn(logits, rows).token.tolist()
    alone = [drawn(logits[i : i + 1], rows[i : i + 1]).token.item() for i in range(6)]
    backwards = drawn(logits[::-1].copy(), rows[::-1]).token.tolist()[::-1]
    assert together == alone == backwards


def test_rows_that_are_not_finite_are_told_and_spare_the_others():
    logits = logits_of(6, 5, 90)
    logits[1, 50], logits[2, 0], logits[3, 89] = np.nan, np.inf, -np.inf
    rows = [Params(seed=i) for i in range(5)]
    got = drawn(logits, rows)
    assert got.finite.tolist() == [1, 0, 0, 0, 1]
    assert got.token[1:4].tolist() == [0, 0, 0]
    assert got.token[[0, 4]].tolist() == [reference_draw(logits[i], rows[i]) for i in (0, 4)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_widened(dtype):
    logits = torch.from_numpy(logits_of(8, 3, 130)).to(dtype)
    rows = [Params(seed=i, top_k=20) for i in range(3)]
    got = draw(logits.to(DEVICE), columns(rows, 130), chunk=CHUNK)
    want = [reference_draw(x.float().numpy(), p) for x, p in zip(logits, rows, strict=True)]
    assert got.token.tolist() == want


def test_top_logprobs_are_of_the_models_own_logits():
    logits = logits_of(9, 2, 50)
    tokens, values = top_logprobs(torch.from_numpy(logits).to(DEVICE), 4)
    for x, ids, got in zip(logits, tokens.tolist(), values.tolist(), strict=True):
        assert ids == np.argsort(-x)[:4].tolist()
        np.testing.assert_allclose(got, [logprob(x, t) for t in ids], rtol=1e-5)


params = st.builds(
    Params,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.integers(0, 90),
    top_p=st.sampled_from([1.0, 0.999, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**40),
    repetition=st.sampled_from([1.0, 1.3]),
    presence=st.sampled_from([0.0, 1.5]),
    frequency=st.sampled_from([0.0, -0.5]),
    prompt=st.tuples(st.integers(0, 79), st.integers(0, 79)),
    output=st.lists(st.integers(0, 79), max_size=5).map(tuple),
    bias=st.dictionaries(st.integers(0, 79), st.sampled_from([-100.0, 3.0]), max_size=2),
)


@settings(max_examples=30)
@given(
    rows=st.lists(params, min_size=1, max_size=3),
    seed=st.integers(0, 99),
    grain=st.sampled_from([0.0, 0.5]),
)
def test_any_mix_of_parameters_gives_the_reference(rows, seed, grain):
    logits = logits_of(seed, len(rows), 80)
    if grain:
        logits = np.round(logits / grain).astype(np.float32) * np.float32(grain)
    assert_same_tokens(logits, rows)
