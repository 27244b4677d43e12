"""The device draws what `engine.sampling` draws, row by row, whatever the neighbours (FR-12 on both backends)."""

import numpy as np
import torch

from engine.device_sampling import DeviceSampler
from engine.models.device import find_accelerator
from engine.sampling import SamplingRows, sample

ROWS, VOCABULARY = 24, 700


def rows_and_logits() -> tuple[SamplingRows, np.ndarray, torch.Tensor]:
    rng = np.random.default_rng(5)
    rows = SamplingRows(
        temperature=rng.choice([0.0, 0.3, 0.9, 1.0, 3.0], ROWS).astype(np.float32),
        top_p=rng.choice([1.0, 0.95, 0.5, 0.01], ROWS).astype(np.float32),
        top_k=rng.choice([0, 1, 5, 60, 9999], ROWS).astype(np.int32),
        seed=rng.integers(0, 2**64, ROWS, np.uint64),
    )
    counters = rng.integers(0, 2**34, ROWS)
    logits = torch.from_numpy(rng.standard_normal((ROWS, VOCABULARY)).astype(np.float32) * 3)
    logits[4] = (logits[4] * 2).round()
    logits[9, 33] = float("nan")
    logits[17, 0] = float("inf")
    return rows, counters, logits


def test_device_and_cpu_draw_the_same_tokens_and_refuse_the_same_rows() -> None:
    rows, counters, logits = rows_and_logits()
    accelerator = find_accelerator()
    got, got_bad = DeviceSampler(accelerator).sample(logits.to(accelerator.device), rows, counters)
    want, want_bad = sample(logits, rows, counters)
    assert got_bad.tolist() == want_bad.tolist() == [9, 17]
    assert got.tolist() == want.tolist()


def test_a_seeded_rows_tokens_do_not_depend_on_its_neighbours() -> None:
    rows, counters, logits = rows_and_logits()
    accelerator = find_accelerator()
    sampler = DeviceSampler(accelerator)
    device_logits = logits.to(accelerator.device)
    together, _ = sampler.sample(device_logits, rows, counters)
    for i in (0, 7, 23):
        own = SamplingRows(
            rows.temperature[i : i + 1],
            rows.top_p[i : i + 1],
            rows.top_k[i : i + 1],
            rows.seed[i : i + 1],
        )
        alone, _ = sampler.sample(device_logits[i : i + 1], own, counters[i : i + 1])
        assert alone[0] == together[i]


def test_no_rows_draw_nothing() -> None:
    rows, counters, logits = rows_and_logits()
    none = SamplingRows(rows.temperature[:0], rows.top_p[:0], rows.top_k[:0], rows.seed[:0])
    tokens, bad = DeviceSampler(find_accelerator()).sample(logits[:0], none, counters[:0])
    assert len(tokens) == len(bad) == 0
