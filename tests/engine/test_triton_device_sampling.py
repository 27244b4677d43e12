"""The device draws what the CPU draws, row by row, whatever the neighbours (FR-12 on both backends)."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.adjust import SpecialRow, draw_rows
from engine.device_sampling import DeviceSampler
from engine.executor import SamplingParams
from engine.models.device import find_accelerator
from engine.sampling import SamplingRows

ROWS, VOCABULARY = 24, 700


def some_rows(rng: np.random.Generator) -> SamplingRows:
    return SamplingRows(
        temperature=rng.choice([0.0, 0.3, 0.9, 1.0, 3.0], ROWS).astype(np.float32),
        top_p=rng.choice([1.0, 0.95, 0.5, 0.01], ROWS).astype(np.float32),
        top_k=rng.choice([0, 1, 5, 60, 9999], ROWS).astype(np.int32),
        seed=rng.integers(0, 2**64, ROWS, np.uint64),
        min_p=rng.choice([0.0, 0.02, 0.6], ROWS).astype(np.float32),
    )


def some_special(rng: np.random.Generator) -> list[SpecialRow]:
    params = [
        SamplingParams(repetition_penalty=1.4, logprobs=0),
        SamplingParams(presence_penalty=1.5, frequency_penalty=0.4),
        SamplingParams(logit_bias=((3, 4.5), (650, -100.0)), logprobs=3),
        SamplingParams(min_tokens=90, stop_ids=(1, 2, 5), logit_bias=((2, 60.0), (9, 1.0))),
        SamplingParams(min_tokens=2, stop_ids=(1, 2, 5), repetition_penalty=0.7, logprobs=5),
        SamplingParams(logprobs=20),
    ]
    return [
        SpecialRow(2 + 3 * i, own, rng.integers(0, 40, 60).astype(np.int32), 45)
        for i, own in enumerate(params)
    ]


def scene() -> tuple[
    SamplingRows, NDArray[np.int64], torch.Tensor, list[SpecialRow], DeviceSampler, torch.Tensor
]:
    rng = np.random.default_rng(5)
    rows, special = some_rows(rng), some_special(rng)
    counters = rng.integers(0, 2**34, ROWS)
    logits = torch.from_numpy(rng.standard_normal((ROWS, VOCABULARY)).astype(np.float32) * 3)
    logits[4] = (logits[4] * 2).round()
    logits[9, 33] = float("nan")
    logits[19, 0] = float("inf")
    accelerator = find_accelerator()
    return (
        rows,
        counters,
        logits,
        special,
        DeviceSampler(accelerator),
        logits.to(accelerator.device),
    )


def one(rows: SamplingRows, i: int) -> SamplingRows:
    columns = (rows.temperature, rows.top_p, rows.top_k, rows.seed, rows.min_p)
    return SamplingRows(*(c[i : i + 1] for c in columns))


def test_device_and_cpu_draw_the_same_tokens_and_refuse_the_same_rows() -> None:
    rows, counters, logits, special, sampler, on_device = scene()
    got = sampler.sample(on_device.clone(), rows, counters, special)
    want = draw_rows(logits.clone(), rows, counters, special)
    assert got.bad.tolist() == want.bad.tolist() == [9, 19]
    assert got.tokens.tolist() == want.tokens.tolist()


def test_device_and_cpu_report_the_same_log_probabilities() -> None:
    rows, counters, logits, special, sampler, on_device = scene()
    got = sampler.sample(on_device.clone(), rows, counters, special).logprobs
    want = draw_rows(logits.clone(), rows, counters, special).logprobs
    assert [i for i, _ in got] == [i for i, _ in want] == [2, 8, 14, 17]
    for (_, mine), (_, theirs) in zip(got, want, strict=True):
        assert mine.top_ids == theirs.top_ids
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-5)
        assert mine.top_logprobs == pytest.approx(theirs.top_logprobs, abs=1e-5)


def test_a_seeded_rows_tokens_do_not_depend_on_its_neighbours() -> None:
    rows, counters, _, special, sampler, on_device = scene()
    together = sampler.sample(on_device, rows, counters, special).tokens
    for i in (0, 5, 23):
        own = [SpecialRow(0, x.params, x.tokens, x.num_prompt) for x in special if x.place == i]
        alone = sampler.sample(on_device[i : i + 1], one(rows, i), counters[i : i + 1], own)
        assert alone.tokens[0] == together[i]


def test_no_rows_draw_nothing() -> None:
    rows, counters, logits, _, sampler, _ = scene()
    columns = (rows.temperature, rows.top_p, rows.top_k, rows.seed, rows.min_p)
    drawn = sampler.sample(logits[:0], SamplingRows(*(c[:0] for c in columns)), counters[:0], [])
    assert len(drawn.tokens) == len(drawn.bad) == 0
