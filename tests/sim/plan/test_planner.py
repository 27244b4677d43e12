"""Plans against trying every number of replicas, and what they say where nothing will do."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.core.errors import ConfigError
from sim.plan.findings import scaling_text
from sim.plan.machines import alone_settings
from sim.plan.reseeding import at_least
from sim.plan.result import PlanTrace
from sim.plan.trial import run_trial
from sim.plan.windows import Windows, fewest_by_window
from sim.report.plan_page import document
from sim.sweep.axes import Files, resolve_settings
from tests.reference.sizing import fewest_replicas
from tests.sim.plan.worlds import plan, question, write_bursts
from traces.figures import encode_figures
from traces.judge import Populations
from traces.schema import MAX_ARRIVAL_NS

COLUMNS = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture
def bursts(tmp_path):
    return write_bursts(tmp_path / "bursts.csv")


def machine_of(replicas, **more):
    return resolve_settings({"hardware": "L4", "tensor_parallel": 1, "replicas": replicas, **more})


@settings(max_examples=8)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["ttft_p99", "ttft_p50", "e2e_p90"]),
    st.integers(3, 40),
    st.sampled_from([None, "90%"]),
)
def test_the_answer_is_that_of_trying_every_number(tmp_path_factory, seed, metric, tenths, goodput):
    trace = write_bursts(tmp_path_factory.mktemp("trace") / "t.csv", seed, bursts=3)
    slo = f"{metric}={tenths * 100}ms" + (f",goodput={goodput}" if goodput else "")
    asked = question(trace, slo, settings={"tensor_parallel": 1}, max_replicas=9)
    [candidate] = plan(asked).candidates
    expected = fewest_replicas(trace, machine_of, asked.slo, 9)
    if candidate.reasons and candidate.reasons[0].code == "alone":
        assert expected is None
    elif candidate.monotone:
        assert candidate.replicas == expected


def test_a_looser_promise_never_needs_more(tmp_path):
    trace = tmp_path / "equal.csv"
    trace.write_text(COLUMNS + "2023-11-16 18:00:00.000,900,5\n" * 24)
    answers = []
    for limit in (400, 700, 1000, 1500, 3000, 9000):
        asked = question(trace, f"ttft_p99={limit}ms", settings={"tensor_parallel": 1})
        [candidate] = plan(asked).candidates
        assert candidate.monotone is not False
        answers.append(candidate.replicas or 99)
    assert answers == sorted(answers, reverse=True)
    assert len(set(answers)) > 3, "the trace has something to find"


def test_where_more_is_worse_the_answer_is_safe_and_the_finding_says_so(bursts):
    """Round robin pairs requests by their number, so one replica more may put two long ones together."""
    told = 0
    for limit in range(400, 1000, 100):
        asked = question(bursts, f"ttft_p99={limit}ms", settings={"tensor_parallel": 1})
        result = plan(asked)
        [candidate] = result.candidates
        if candidate.monotone is not False:
            continue
        told += 1
        meets = {point.replicas: point.meets for point in candidate.points}
        assert any("is not monotone" in sentence for sentence in result.findings)
        for size in candidate.exceptions:
            assert not meets[size]
            assert any(holds and other < size for other, holds in meets.items())
        if candidate.replicas is not None:
            above = range(candidate.replicas, min(asked.max_replicas, candidate.replicas + 2) + 1)
            assert all(meets[size] for size in above)
    assert told, "the trace has something to find"


def test_a_run_that_is_given_up_misses_and_one_that_is_not_is_the_whole_run(bursts):
    asked = question(bursts, "ttft_p99=1s")
    whole = run_trial(bursts, machine_of(1), asked.slo, False, False, None)
    assert not whole.meets
    trace = write_bursts(bursts.parent / "long.csv", bursts=20)
    submitted = run_trial(trace, machine_of(1), asked.slo, False, False, None).submitted
    most = Populations(submitted, submitted)
    stopped = run_trial(trace, machine_of(1), asked.slo, False, False, most)
    assert stopped.stopped_s is not None
    assert not stopped.meets
    assert stopped.submitted < most.requests
    assert all(clause.value_ms is None for clause in stopped.clauses)
    many = run_trial(trace, machine_of(9), asked.slo, False, False, None)
    assert run_trial(trace, machine_of(9), asked.slo, False, False, most) == many


def test_counts_add_up_and_rejections_are_misses(tmp_path):
    rows = "".join(f"2023-11-16 18:00:{n:02},{9000 if n == 7 else 50},4\n" for n in range(50))
    (tmp_path / "t.csv").write_text(COLUMNS + rows + "no,good,row\n")
    more = {"max_context": 8000, "hardware": "H100"}
    asked = question(tmp_path / "t.csv", "ttft_p99=2s,ttft_p90=2s", settings={"max_context": 8000})
    outcome = run_trial(asked.trace, machine_of(2, **more), asked.slo, False, False, None)
    assert outcome.rejected == {"context_exceeded": 1}
    assert outcome.submitted == outcome.done + 1 == 50
    assert outcome.bad == {"bad_timestamp": 1}
    strict, loose = outcome.clauses
    assert (strict.misses, strict.allowed, strict.value_ms) == (1, 0, None)
    assert (loose.misses, loose.allowed) == (1, 5)
    assert loose.value_ms is not None
    [candidate] = plan(asked).candidates
    assert candidate.reasons[0].code == "rejected"
    assert "1 of 50 requests (1 context_exceeded)" in candidate.reasons[0].message
    fitting = question(
        asked.trace, "ttft_p99=2s", settings={"max_context": 8000}, only_fitting=True
    )
    result = plan(fitting)
    assert result.best == 0
    assert (result.trace.requests, result.trace.left_out) == (49, 1)


@pytest.mark.parametrize(
    ("slo", "changes", "code", "message"),
    [
        (
            "ttft_p99=1ms",
            {},
            "alone",
            "even with each request alone on an idle 8 x L4, ttft_p99 is",
        ),
        (
            "ttft_p99=1ms",
            {},
            "alone",
            "; the longest prompt, 1,",
        ),
        (
            "tpot_p99=3ms",
            {"settings": {"tensor_parallel": 2}},
            "alone",
            " ms at least, in which 15.0 GB of weights are read, 7.5 of them on each device",
        ),
        (
            "ttft_p99=2s",
            {"settings": {"model": "Qwen3-32B", "tensor_parallel": 1}},
            "no_fit",
            "leaves no room for a KV block",
        ),
        (
            "ttft_p99=700ms",
            {"settings": {"tensor_parallel": 1}, "max_replicas": 2},
            "replicas",
            "2 replicas are not enough (ttft_p99 not kept); raise --max-replicas",
        ),
        ("ttft_p99=2s", {"settings": {"num_blocks": 20}}, "rejected", "pool_exceeded"),
    ],
)
def test_what_cannot_be_done_says_which_bound_it_meets(bursts, slo, changes, code, message):
    result = plan(question(bursts, slo, **changes))
    assert result.best is None
    [candidate] = result.candidates
    assert not candidate.feasible
    assert candidate.reasons[0].code == code
    assert result.findings[-1].startswith("What could do: ")
    assert message in candidate.reasons[0].message
    assert result.findings[0].startswith("No number of machines")
    assert any(message in sentence for sentence in result.findings)


def test_a_plan_on_a_table_of_steps_says_why_it_has_no_lower_bound(bursts, tmp_path):
    steps = tmp_path / "steps.csv"
    rows = [
        f"{d},{c},{k},{5000 + 40 * d + 20 * k}" for d in (0, 64) for c in (0, 900) for k in (0, 900)
    ]
    steps.write_text("\n".join(["decodes,decode_context,chunk_tokens,step_us", *rows]) + "\n")
    asked = question(bursts, "ttft_p99=2s", settings={"cost": f"table:{steps}"})
    result = plan(asked)
    [candidate] = result.candidates
    assert candidate.bound is None
    assert candidate.no_bound in result.findings
    assert "the table steps.csv has points and no formula" in (candidate.no_bound or "")
    assert "Step times are those of the table" in " ".join(result.findings)
    assert "from the table steps.csv, the same on all hardware" in " ".join(result.assumptions)
    shown = next(f for f in document(result, []).findings if f.sentence == candidate.no_bound)
    assert (shown.figure, shown.source) == (
        "no bound",
        "A bound is proved from the cost model, and a table has no formula.",
    )
    [modelled] = plan(replace(asked, settings={})).candidates
    assert (modelled.bound is not None, modelled.no_bound) == (True, None)


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        ("bf16", "a smaller model or fewer bits (--set dtype=fp8)"),
        ("fp8", "a smaller model or fewer bits (--set dtype=int4)"),
        ("int4", "a smaller model"),
    ],
)
def test_advice_names_no_more_bits_than_are_used(bursts, dtype, said):
    asked = question(bursts, "tpot_p99=1ms", settings={"dtype": dtype, "tensor_parallel": 1})
    advice = plan(asked).findings[-1].removesuffix(".")
    assert said in advice.removeprefix("What could do: ").split("; ")


def test_the_cheapest_wins_and_prices_decide(bursts):
    asked = question(bursts, "ttft_p99=2s", settings={"tensor_parallel": 1})
    dear = plan(asked, ["L4", "H100"], {"L4": 50.0, "H100": 1.0})
    cheap = plan(asked, ["L4", "H100"], {"L4": 0.01, "H100": 1.0})
    assert (dear.best, cheap.best) == (1, 0)
    one = cheap.candidates[0]
    assert one.cost is not None
    assert one.cost.usd_per_hour == pytest.approx(0.01 * (one.devices or 0))
    point = next(point for point in one.points if point.replicas == one.replicas)
    hours = point.simulated_s / 3600
    tokens = point.output_tokens_per_s * point.simulated_s
    assert one.cost.usd_per_million_output_tokens == pytest.approx(
        one.cost.usd_per_hour * hours / tokens * 1e6
    )
    assert "given with --price" in " ".join(cheap.assumptions)


def test_a_price_is_found_however_the_hardware_is_spelled(bursts):
    asked = question(bursts, "ttft_p99=9s", settings={"tensor_parallel": 1})
    [candidate] = plan(asked, ["h100"], {"h100": 1.5}).candidates
    assert (candidate.hardware, candidate.usd_per_device_hour) == ("H100", 1.5)


def test_hardware_without_a_price_comes_after_hardware_with_one(bursts, tmp_path):
    table = tmp_path / "mine.toml"
    table.write_text(
        '[Mine]\nmemory_mib = 81920\nmemory_gb_per_s = 2000\npeak_tflops = {bf16 = 300}\nsource = "mine"\n'
    )
    asked = question(bursts, "ttft_p99=2s", files=Files(hardware=table))
    assert plan(asked, ["Mine"]).candidates[0].cost is None
    assert plan(asked, ["Mine", "H100"]).best == 1


def test_windows_need_what_trying_every_number_finds(bursts):
    asked = question(bursts, "ttft_p99=1s")
    windows = Windows(length_ns=10 * 10**9, first=0, end=6, most=6)
    found = fewest_by_window(bursts, machine_of(1), asked.slo, False, False, windows)
    lines = bursts.read_text().splitlines()[1:]
    for number in range(6):
        minute_second = f"18:00:{number * 10:02}."
        rows = [line for line in lines if minute_second in line]
        assert found.requests[number] == len(rows)
        part = bursts.parent / "window.csv"
        part.write_text(COLUMNS + "\n".join(rows) + "\n")
        fewest = next(
            (
                n
                for n in range(1, 6)
                if run_trial(part, machine_of(n), asked.slo, False, False, None).meets
            ),
            6,
        )
        assert found.replicas[number] == fewest
    halves = [
        fewest_by_window(bursts, machine_of(1), asked.slo, False, False, part)
        for part in (
            Windows(length_ns=10 * 10**9, first=0, end=2, most=6),
            Windows(length_ns=10 * 10**9, first=2, end=6, most=6),
        )
    ]
    assert [*itertools.chain(*(half.replicas for half in halves))] == found.replicas


def test_the_bound_is_below_the_windows_and_those_below_the_fixed_answer(bursts):
    asked = question(bursts, "ttft_p99=1s", settings={"tensor_parallel": 1}, with_autoscaling=True)
    [candidate] = plan(asked).candidates
    scaling = candidate.autoscaling
    assert scaling is not None
    assert sum(scaling.requests) == len(bursts.read_text().splitlines()) - 1
    assert 0 < max(scaling.replicas) <= (candidate.replicas or 0)
    assert scaling.replica_hours == pytest.approx(sum(scaling.replicas) * 10 / 3600)
    assert scaling.fixed_replica_hours == pytest.approx(
        (candidate.replicas or 0) * len(scaling.replicas) * 10 / 3600
    )
    one_window = replace(candidate, autoscaling=replace(scaling, replicas=[2], requests=[9]))
    assert [len(scaling_text(each)) for each in (candidate, one_window)] == [1, 0]
    bound = candidate.bound
    assert bound is not None
    assert 0 < bound.replica_hours < scaling.replica_hours < (bound.fixed_replica_hours or 0)
    assert 1 < (bound.peak_replicas or 0) <= max(scaling.replicas)
    assert bound.most_saving_share == 1 - bound.replica_hours / (bound.fixed_replica_hours or 0)
    point = next(point for point in candidate.points if point.replicas == candidate.replicas)
    assert point.cost is not None
    cost = point.cost.usd_per_million_output_tokens or 0
    assert bound.usd_per_million_output_tokens == pytest.approx(
        cost * (1 - bound.most_saving_share)
    )


def test_whole_plans_do_not_depend_on_workers_or_cache(bursts, tmp_path):
    asked = question(
        bursts,
        "ttft_p99=1s",
        settings={"tensor_parallel": 1},
        seeds=4,
        with_sensitivity=True,
        with_autoscaling=True,
    )
    hardware = ["L4", "A100-80"]
    alone = encode_figures(plan(asked, hardware))
    seen = []
    told = plan(asked, hardware, count=2, folder=tmp_path / "c", watch=seen.append)
    assert encode_figures(told) == alone
    assert (seen[-1].done, seen[-1].running) == (told.simulations, 0), (
        "progress and report count alike"
    )
    seen = []
    again = plan(asked, hardware, folder=tmp_path / "c", watch=seen.append)
    assert encode_figures(again) == alone
    assert seen == [] or seen[-1].cached == seen[-1].done, "nothing was simulated again"


@pytest.mark.parametrize(
    ("changes", "hardware", "message"),
    [
        ({"settings": {"replicas": 2}}, ["L4"], "--set replicas has no part in this question"),
        ({"settings": {"token_budget": 3}}, ["L4"], "--token-budget (3)"),
        ({}, ["L4", "l4"], "--hardware names L4 twice"),
        ({}, ["L5"], "unknown hardware 'L5'"),
        ({"settings": {"model": "no"}}, ["L4"], "unknown model 'no'"),
    ],
)
def test_a_wrong_question_is_one_sentence(bursts, changes, hardware, message):
    with pytest.raises(ConfigError) as found:
        plan(question(bursts, "ttft=2s", **changes), hardware)
    assert message in found.value.message


@pytest.mark.parametrize("changes", [{"rate_scale": 3.0}, {"time_scale": 0.05}, {"resample": True}])
def test_alone_means_alone_whatever_is_done_to_the_trace(bursts, changes):
    settings = {"tensor_parallel": 1}
    [plain] = plan(question(bursts, "ttft_p99=9s", settings=settings)).candidates
    [scaled] = plan(question(bursts, "ttft_p99=9s", settings=settings | changes)).candidates
    assert plain.alone is not None
    assert scaled.alone == plain.alone
    assert scaled.points != plain.points


@pytest.mark.parametrize("sessions", [0, 1, 80, 10_000, 10_000_000])
def test_however_many_sessions_are_tried_alone_their_times_fit(sessions):
    trace = PlanTrace(
        name="t", format="kilburn", sha256="", has_arrivals=True, requests=10**7, with_tpot=0, longest_prompt=1,
        sessions=sessions, left_out=0, bad={}, span_s=0.0,
    )  # fmt: skip
    gap_s = int(str(alone_settings(trace)["arrivals"]).partition(":")[2])
    assert 0 < gap_s * 10**9 * (sessions or trace.requests) <= MAX_ARRIVAL_NS


@pytest.mark.parametrize(
    ("holds", "draws", "share"), [(10, 10, 0.741), (0, 10, 0.0), (9, 10, 0.606), (59, 59, 0.95)]
)
def test_few_draws_show_little(holds, draws, share):
    assert at_least(holds, draws) == pytest.approx(share, abs=0.001)


def test_a_slow_machine_has_its_requests_alone_however_long_they_take(tmp_path):
    """Two answers that take half an hour each: on one machine one after the other, neither meets the other."""
    table = tmp_path / "slow.toml"
    table.write_text(
        '[Slow]\nmemory_mib = 81920\nmemory_gb_per_s = 10\npeak_tflops = {bf16 = 1}\nsource = "mine"\n'
    )
    trace = tmp_path / "t.csv"
    trace.write_text(COLUMNS + "2023-11-16 18:00:00.000,9000,1000\n" * 2)
    asked = question(
        trace, "e2e_p99=120m", settings={"tensor_parallel": 1}, files=Files(hardware=table)
    )
    [candidate] = plan(asked, ["Slow"]).candidates
    assert candidate.alone is not None
    alone_ms = candidate.alone.e2e_ms
    assert (alone_ms.max or 0) > 1200e3
    assert alone_ms.max == alone_ms.p50
