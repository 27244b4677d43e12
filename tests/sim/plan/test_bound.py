"""No simulated schedule beats the bound, and where a schedule wastes nothing the bound is close to it."""

import math
from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost import StepWork
from sim.fitted import Fit, FittedCost
from sim.floors import floors_of
from sim.ledger import State
from sim.occupancy import Level
from sim.plan import bound as bound_module
from sim.plan.bound import least_of
from sim.plan.demand import demand_of
from sim.plan.exempt import allowance_of
from sim.pricing import make_cost
from sim.replay import simulate
from sim.sweep.axes import resolve_settings
from traces.schema import ROOT, TraceRequest
from traces.slo import Clause, Slo, parse_slo

LOOSE = Slo(clauses=(Clause(metric="e2e", percentile=100, limit_ms=1e12),))
HASH_BLOCK = 24
"""Not a multiple of every block size."""


def requests_of(
    rng, count, *, hashed=False, sessions=False, most_prompt=120, most_output=40, branches=2
):
    """Requests whose prompts have common beginnings, alone or in sessions."""
    known: dict[tuple[int, ...], int] = {}
    rows, now = [], 0
    for number in range(count):
        now += int(rng.integers(0, 20_000_000))
        prompt, output = int(rng.integers(1, most_prompt)), int(rng.integers(1, most_output))
        ids = array("q")
        if hashed and rng.random() < 0.9:
            path: tuple[int, ...] = ()
            for _ in range(int(rng.integers(0, -(-prompt // HASH_BLOCK) + 1))):
                path = (*path, int(rng.integers(0, branches)))
                ids.append(known.setdefault(path, len(known)))
        session = number // 3 if sessions else ROOT
        turn = number % 3 if sessions else 0
        rows.append(
            TraceRequest(
                number + 1,
                now,
                prompt,
                output,
                ids,
                session,
                turn,
                turn - 1 if turn else ROOT,
                1000,
            )
        )
    return rows


def machine_of(**more):
    base = {"model": "SmolLM2-135M-Instruct", "hardware": "L4", "tensor_parallel": 1}
    return resolve_settings(base | more)


def busy_s(run):
    return sum(Level(*replica.timeline.totals()).busy for replica in run.replicas) / 1e9


def promises_that_hold(ledger, percentile):
    """The tightest limits that a run kept at that percentile; None where a request has no answer."""
    latencies, clauses = ledger.latencies(), []
    if ledger.count(State.DONE) < len(ledger):
        return None
    for metric in ("ttft", "tpot", "e2e"):
        values = np.sort(getattr(latencies, f"{metric}_ms"))
        if len(values):
            at = float(values[math.ceil(round(percentile * len(values) / 100, 6)) - 1])
            clauses.append(
                Clause(metric=metric, percentile=percentile, limit_ms=max(1e-6, at + 1e-6))
            )
    return Slo(clauses=tuple(clauses))


WORK = st.builds(
    lambda decodes, context, chunks: StepWork(
        decodes + sum(count for count, _ in chunks),
        decodes + len(chunks) // 2,
        decodes + len(chunks),
        decodes * context + sum(start + count for count, start in chunks),
        decodes * context
        + sum(count * start + count * (count + 1) // 2 for count, start in chunks),
        len(chunks),
        sum(count for count, _ in chunks),
        sum(start + count for count, start in chunks),
        sum(count * start + count * (count + 1) // 2 for count, start in chunks),
    ),
    st.integers(0, 64),
    st.integers(1, 5000),
    st.lists(st.tuples(st.integers(1, 100), st.integers(0, 5000)), max_size=4),
).filter(lambda work: work.num_tokens > 0)


@settings(max_examples=100)
@given(
    WORK,
    st.sampled_from(["Llama-3.1-8B", "Qwen3-30B-A3B", "SmolLM2-135M-Instruct"]),
    st.sampled_from([1, 2]),
    st.integers(0, 2**32),
)
def test_no_step_is_cheaper_than_a_line_below_its_price(work, model, open_plans, seed):
    cost = make_cost(machine_of(model=model, hardware="B200", open_plans=open_plans))
    lines = floors_of(cost, 512)
    assert all(line.of(work) <= cost.step_ns(work) for line in lines)
    rng = np.random.default_rng(seed)
    bends = [1, 4, 16, 64, 256]
    names = ["step", "sample", "chunk", "decode_context", "chunk_context", "chunk_pair"]
    names += [f"token_{bend}" for bend in bends]
    scale = [1e3, 10, 10, 1, 1, 0.1, *[100] * len(bends)]
    values = (rng.random(len(names)) * scale * (rng.random(len(names)) < 0.7)).tolist()
    fit = Fit(
        recording="r", model="m", num_steps=1, max_tokens=512, folds=5, error_share=0.0, total_error_share=0.0,
        unusual_steps_share=0.0, unusual_time_share=0.0, lag_us=0.0, bends=bends,
        coefficients=dict(zip(names, values, strict=True)),
    )  # fmt: skip
    fitted = FittedCost(fit)
    lines = floors_of(fitted, 512)
    assert lines
    for line in lines:
        assert min(line) >= 0
        assert line.of(work) <= fitted.step_ns(work) * (1 + 1e-12)


def test_lines_touch_what_they_are_below():
    cost = make_cost(machine_of(model="Llama-3.1-8B", hardware="H100"))
    lines = floors_of(cost, 2048)
    for work in (StepWork(1, 1, 1, 100, 100), StepWork(200, 200, 200, 20_000, 20_000)):
        assert max(line.of(work) for line in lines) >= cost.step_ns(work) - 1


def test_where_nothing_is_shared_or_batched_the_bound_is_nearly_what_it_takes():
    resolved = machine_of(model="Llama-3.1-8B", hardware="H100", max_batch=1, open_plans=1)
    rows = [TraceRequest(n + 1, n * 10**9, 300, 60) for n in range(5)]
    run = simulate(iter(rows), resolved, 0)
    found = least_of(rows, resolved, LOOSE, 0)
    assert found is not None
    assert 0.97 <= found.device_s / busy_s(run) <= 1


def test_a_burst_shows_how_many_replicas_are_needed_at_once():
    """Forty prompts at one moment, each 25 ms of an H100, and 300 ms for the first tokens."""
    resolved = machine_of(model="Llama-3.1-8B", hardware="H100")
    rows = [TraceRequest(n + 1, (n // 40) * 60 * 10**9, 900, 2) for n in range(80)]
    found = least_of(rows, resolved, parse_slo("ttft_p100=300ms"), 0)
    assert found is not None
    assert found.peak == math.ceil(40 * 900 * 27e-6 / 0.3) == 4
    assert (found.peak_to_s or 0) - (found.peak_from_s or 0) == pytest.approx(0.3, rel=0.05)
    idle = least_of(rows, resolved, parse_slo("ttft_p100=5s"), 0)
    assert idle is not None
    assert idle.peak == 1
    assert idle.device_s == found.device_s


@pytest.mark.parametrize(
    ("slo", "never", "requests", "with_tpot"),
    [
        ("ttft_p99=1s", 0, 2, math.inf),
        ("ttft_p99=1s,e2e_p50=9s", 0, 2, math.inf),
        ("ttft_p99=1s", 1, 1, math.inf),
        ("ttft_p99=1s", 5, 0, math.inf),
        ("ttft_p90=1s,goodput=99%", 0, 2, math.inf),
        ("ttft_p90=1s,tpot_p95=9ms", 0, 20, 5),
        ("tpot_p95=9ms", 2, math.inf, 3),
    ],
)
def test_so_many_may_be_refused(slo, never, requests, with_tpot):
    several = np.arange(200) < 100
    found = allowance_of(parse_slo(slo), several, np.arange(200) < never)
    assert (found.requests, found.with_tpot) == (requests, with_tpot)


def test_the_costliest_may_be_refused():
    resolved = machine_of(model="Llama-3.1-8B", hardware="H100")
    rows = [TraceRequest(n + 1, 0, 8000 if n < 2 else 100, 10) for n in range(200)]
    all_of_them = least_of(rows, resolved, parse_slo("ttft_p100=9s"), 0)
    most = least_of(rows, resolved, parse_slo("ttft_p99=9s"), 0)
    small = least_of(rows[2:], resolved, parse_slo("ttft_p100=9s"), 0)
    assert all_of_them is not None
    assert most is not None
    assert small is not None
    assert (all_of_them.exempt, most.exempt, small.exempt) == (0, 2, 0)
    assert most.device_s == pytest.approx(small.device_s)
    assert most.device_s < 0.7 * all_of_them.device_s


def test_whom_no_promise_covers_may_be_refused():
    resolved = machine_of(model="Llama-3.1-8B", hardware="H100")
    rows = [TraceRequest(n + 1, 0, 100, 1 if n < 50 else 10) for n in range(200)]
    found = least_of(rows, resolved, parse_slo("tpot_p99=60ms"), 0)
    covered = least_of(rows[50:], resolved, parse_slo("ttft_p99.3=9s"), 0)
    assert found is not None
    assert covered is not None
    assert (found.exempt, covered.exempt) == (51, 1)
    assert found.device_s == pytest.approx(covered.device_s)


def test_a_request_that_can_never_run_takes_nothing():
    resolved = machine_of(model="Llama-3.1-8B", hardware="H100", max_context=1000)
    rows = [TraceRequest(n + 1, 0, 5000 if n == 3 else 100, 10) for n in range(50)]
    found = least_of(rows, resolved, LOOSE, 0)
    others = least_of([*rows[:3], *rows[4:]], resolved, LOOSE, 0)
    assert found is not None
    assert others is not None
    assert found.device_s == pytest.approx(others.device_s)


def test_shared_blocks_are_computed_once():
    def row(line, prompt, *ids):
        return TraceRequest(line, 0, prompt, 1, array("q", ids))

    rows = [row(1, 70, 0, 1, 2), row(2, 96, 0, 1, 3, 4), row(3, 64, 0, 1), row(4, 50)]
    found = demand_of(rows, 16, 32)
    # The last id of the first covers 6 positions, no full block; the third finds all but what it must compute for itself.
    assert found.computed.tolist() == [70, 32, 0, 50]
    assert found.unkeyed.tolist() == [6, 0, 0, 50]
    assert found.pairs.tolist() == [70 * 71 / 2, (96 * 97 - 64 * 65) / 2, 0, 50 * 51 / 2]
    assert found.held_blocks.tolist() == pytest.approx([4 / 3 + 6 / 16, 4 / 3 + 2, 4 / 3, 50 / 16])


MACHINES = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([1, 8, 16]),
        "max_batch": st.sampled_from([1, 4, 16]),
        "token_budget": st.sampled_from([16, 48, 512]),
        "open_plans": st.sampled_from([1, 2]),
        "replicas": st.integers(1, 3),
        "preemption": st.sampled_from(["recompute", "swap"]),
        "num_sequences": st.sampled_from([1, 1, 2]),
        "allocator": st.sampled_from(["paged", "paged", "paged", "oracle"]),
        "router": st.sampled_from(["round-robin", "prefix-aware"]),
        "model": st.sampled_from(["SmolLM2-135M-Instruct", "Llama-3.1-8B", "Qwen3-30B-A3B"]),
        "hardware": st.sampled_from(["L4", "H100", "B200"]),
    }
)


@settings(max_examples=25)
@given(
    st.integers(0, 2**32),
    MACHINES,
    st.integers(170, 800),
    st.sampled_from([50, 90, 99]),
    st.sampled_from(["plain", "hashed", "sessions", "hashed sessions"]),
)
def test_no_schedule_beats_the_bound(seed, machine, positions, percentile, kind):
    machine = {**machine, "num_blocks": -(-positions // machine["block_size"])}
    if machine["num_sequences"] > machine["max_batch"] or machine["allocator"] != "paged":
        machine["num_sequences"] = 1
    if machine["allocator"] != "paged":
        machine["preemption"] = "recompute"
    if machine["preemption"] == "swap":
        machine["host_gb"] = 1.0
    if machine["hardware"] == "L4" and machine["model"] != "SmolLM2-135M-Instruct":
        machine["hardware"] = "H100"
    resolved = resolve_settings(machine | {"tensor_parallel": 1})
    hashed = "hashed" in kind
    rng = np.random.default_rng(seed)
    rows = requests_of(rng, 12, hashed=hashed, sessions="sessions" in kind)
    covers = HASH_BLOCK if hashed else 0
    run = simulate(iter(rows), resolved, covers)
    found = least_of(rows, resolved, LOOSE, covers)
    assert found is not None
    assert 0 < found.device_s <= busy_s(run)
    slo = promises_that_hold(run.ledger, percentile)
    if slo is None:
        return
    tight = least_of(rows, resolved, slo, covers)
    assert tight is not None
    assert 0 <= tight.device_s <= busy_s(run)
    assert (tight.peak is None) == ("sessions" in kind)
    assert tight.peak is None or 1 <= tight.peak <= resolved.settings.replicas


@pytest.mark.parametrize("fault", ["owner", "context", "exempt"])
def test_a_bound_that_asks_for_too_much_is_caught(monkeypatch, fault):
    """The instances above are close enough to the bound that one of these is seen."""
    if fault == "owner":
        monkeypatch.setattr(
            bound_module, "demand_of", lambda rows, size, covers: demand_of(rows, size, 0)
        )
    elif fault == "context":
        lines = bound_module.floors_of
        monkeypatch.setattr(
            bound_module,
            "floors_of",
            lambda *args: [
                line._replace(token=1.2 * line.token, step=1.2 * line.step) for line in lines(*args)
            ],
        )
    else:
        monkeypatch.setattr(
            bound_module,
            "kept_work",
            lambda whole, in_time, *_: float((whole + in_time).sum()) * 1.3,
        )
    beaten = 0
    for seed in range(12):
        resolved = machine_of(model="Llama-3.1-8B", hardware="H100", max_batch=1, num_blocks=400)
        rows = requests_of(
            np.random.default_rng(seed), 12, hashed=True, most_prompt=900, most_output=3, branches=1
        )
        run = simulate(iter(rows), resolved, HASH_BLOCK)
        found = least_of(rows, resolved, LOOSE, HASH_BLOCK)
        assert found is not None
        beaten += found.device_s > busy_s(run)
    assert beaten
