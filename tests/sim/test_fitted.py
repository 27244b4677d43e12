"""Fits: they find the law that made the times, say honestly how far they are off, and price what was not seen."""

import json

import msgspec
import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from engine.core.errors import TraceError
from sim.cli import replay
from sim.cost import decode_work
from sim.fitted import BENDS, Fit, FittedCost, features, fit_recording, fit_steps, names
from sim.recorded_steps import RecordedStep, read_steps
from sim.sweep.axes import config_of
from tests.sim.test_cost import with_chunk
from tests.sim.test_lockstep import edited, first, record_crowd

LAW = {
    "step": 2_000_000.0,
    "sample": 300_000.0,
    "decode_context": 500.0,
    "token_1": 20_000.0,
    "token_16": 90_000.0,
}


def some_steps(count: int, noise: float = 0.0, seed: int = 0) -> list[RecordedStep]:
    """Steps whose time follows `LAW`, but for noise of mean 1."""
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(count):
        work = decode_work(size := int(rng.integers(0, 40)), int(size * rng.integers(1, 900)))
        if not size or rng.random() < 0.3:
            work = with_chunk(
                work, int(rng.integers(0, 300)), int(rng.integers(1, 200)), sampled=True
            )
        named = zip(names((1, 16)), features(work, (1, 16)), strict=True)
        ns = sum(LAW.get(name, 0) * value for name, value in named)
        factor = rng.gamma(1 / noise**2, noise**2) if noise else 1.0
        steps.append(RecordedStep(work, int(ns * factor), 1000))
    return steps


def fitted(steps: list[RecordedStep]) -> Fit:
    return fit_steps(steps, recording="r", model="m")


def test_a_law_without_noise_is_found_and_no_error_is_told():
    fit = fitted(some_steps(400))
    assert fit.error_share < 1e-6
    assert abs(fit.total_error_share) < 1e-6
    cost = FittedCost(fit)
    assert all(
        cost.step_ns(s.work) == pytest.approx(s.ns, rel=1e-6) for s in some_steps(50, seed=1)
    )


def test_noise_is_told_as_large_as_it_is_and_does_not_shift_the_sum():
    fit = fitted(some_steps(3000, noise=0.2))
    assert 0.1 < fit.error_share < 0.25
    assert abs(fit.total_error_share) < 0.02
    fresh = some_steps(500, seed=5)
    cost = FittedCost(fit)
    predicted = sum(cost.step_ns(step.work) for step in fresh)
    assert predicted == pytest.approx(sum(step.ns for step in fresh), rel=0.03)


def test_a_disturbed_stretch_is_set_aside_and_its_cost_is_told():
    steps = some_steps(1000, noise=0.05)
    for at in range(300, 400):
        steps[at] = msgspec.structs.replace(steps[at], ns=2 * steps[at].ns)
    fit = fitted(steps)
    assert 0.06 < fit.unusual_steps_share < 0.13
    extra = sum(step.ns for step in steps[300:400]) / 2 / sum(step.ns for step in steps)
    assert fit.unusual_time_share == pytest.approx(extra, rel=0.2)
    assert fit.total_error_share == pytest.approx(-extra, rel=0.3)
    cost = FittedCost(fit)
    fresh = some_steps(500, seed=5)
    predicted = sum(cost.step_ns(step.work) for step in fresh)
    assert predicted == pytest.approx(sum(step.ns for step in fresh), rel=0.02)


def test_slow_steps_that_come_now_and_then_count_in_full():
    steps = some_steps(3000)
    for at in range(0, 3000, 10):
        steps[at] = msgspec.structs.replace(steps[at], ns=3 * steps[at].ns)
    fit = fitted(steps)
    assert fit.unusual_steps_share == 0
    cost = FittedCost(fit)
    predicted = sum(cost.step_ns(step.work) for step in steps)
    assert predicted == pytest.approx(sum(step.ns for step in steps), rel=0.02)


def test_steps_larger_than_any_recorded_go_on_in_a_straight_line():
    def law(tokens: int) -> int:
        return 1_000_000 + 10_000 * tokens

    works = [with_chunk(decode_work(0, 0), 0, 1 + n % 100, sampled=False) for n in range(400)]
    fit = fitted([RecordedStep(work, law(work.num_tokens), 0) for work in works])
    assert fit.max_tokens == 100
    assert max(fit.bends) < 100 < max(BENDS)
    large = FittedCost(fit).step_ns(with_chunk(decode_work(0, 0), 0, 1000, sampled=False))
    assert large > 0.9 * law(1000)


def test_the_error_told_is_that_of_steps_that_were_not_seen():
    """Times that follow nothing cannot be predicted, however many coefficients there are."""
    rng = np.random.default_rng(0)
    steps = [RecordedStep(step.work, int(rng.choice([1e6, 1e9])), 0) for step in some_steps(200)]
    assert fitted(steps).error_share > 0.5


def test_no_coefficient_is_negative():
    """Even where more work took less time."""
    steps = [RecordedStep(decode_work(n, 100 * n), 10_000_000 - 1000 * n, 0) for n in range(1, 200)]
    fit = fitted(steps)
    assert all(value > 0 for value in fit.coefficients.values())


@given(st.integers(1, 300), st.integers(1, 100_000), st.integers(1, 300))
def test_a_leap_costs_what_its_steps_cost_one_by_one(sequences, context, steps):
    cost = FittedCost(FIT)
    work = decode_work(sequences, context)
    one_by_one = [
        cost.step_ns(work._replace(context_tokens=c, attended=c))
        for c in range(context, context + steps * sequences, sequences)
    ]
    assert cost.leap_ns(work, steps).tolist() == one_by_one


FIT = fitted(some_steps(300, noise=0.1))


# -- recordings ------------------------------------------------------------------------------------------------


@pytest.fixture
async def recording(tmp_path):
    path = tmp_path / "run.jsonl"
    await record_crowd(path, clients=80, faults=False, virtual=True)
    return path


async def test_steps_of_a_recording_take_what_its_clock_says(recording):
    """The crowd's virtual clock moves by 100 µs a step and 1 µs a token; each call moves its stamp by a nanosecond at least."""
    steps = read_steps(recording)
    assert all(abs(step.ns - 1000 * step.work.num_tokens - 100_000) < 500 for step in steps)
    fit = fit_recording(recording)
    assert fit.error_share < 0.001
    assert fit.num_steps == len(steps)


async def test_a_recording_that_is_not_what_it_says_is_refused(recording):
    def change(lines):
        first(lines, "preempt")["num_tokens"] += 1

    with pytest.raises(TraceError, match="--lockstep"):
        fit_recording(edited(recording, change))


async def test_a_replay_takes_the_fit_and_the_recorded_settings(recording, tmp_path):
    trace, out = tmp_path / "trace.csv", tmp_path / "figures.json"
    rows = [f"2024-05-02 00:00:0{i},16,20" for i in range(6)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    app = typer.Typer()
    app.command()(replay)
    call = [str(trace), "--cost", f"fitted:{recording}", "--max-batch", "9", "--json", str(out)]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 0, result.output
    assert "5 folds" in result.output
    figures = json.loads(out.read_bytes())
    settings = figures["config"]["settings"]
    assert (settings["num_blocks"], settings["block_size"], settings["max_batch"]) == (20, 4, 9)
    assert figures["config"]["fit"]["error_share"] < 0.001
    # 16 tokens in one step, then 19 steps of one token each.
    assert figures["ttft_ms"]["p50"] == pytest.approx(0.116, rel=0.01)
    assert figures["tpot_ms"]["p50"] == pytest.approx(0.101, rel=0.01)

    result = CliRunner().invoke(app, [*call, "--kv-gb", "1"])
    assert result.exit_code == 0, result.output
    settings = json.loads(out.read_bytes())["config"]["settings"]
    assert (settings["num_blocks"], settings["kv_gb"], settings["block_size"]) == (None, 1.0, 4)
    swept = config_of({"cost": f"fitted:{recording}", "kv_gb": 1.0})
    assert (swept.num_blocks, swept.kv_gb, swept.block_size) == (None, 1.0, 4)

    result = CliRunner().invoke(app, [*call, "--utilisation", "0.5"])
    assert "--utilisation changes nothing where the recording says the pool's size" in result.stderr


def test_what_is_no_recording_or_no_kind_of_cost_is_said_plainly(tmp_path):
    app = typer.Typer()
    app.command()(replay)
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-02 00:00:00,16,20")
    for cost, words in (
        (f"fitted:{trace}", "no recording"),
        ("fited:x", "--cost: unknown value 'fited:x'"),
    ):
        result = CliRunner().invoke(app, [str(trace), "--cost", cost])
        assert result.exit_code == 2
        assert words in " ".join(result.stderr.split())
