"""What moves an answer: every setting that could is turned, and one that cannot be is told with its reason."""

import pytest
from msgspec.structs import replace

from sim.plan.ladder import Ladder
from sim.plan.points import Price
from sim.plan.sensitivity import Change, changes_for, vary
from sim.plan.sized import Sized, new_candidate
from sim.plan.trial import run_trial
from sim.report.plan_findings import page_finding
from sim.sweep.axes import resolve_settings
from sim.sweep.workers import Failure
from tests.sim.plan.worlds import plan, question, write_bursts


@pytest.fixture
def bursts(tmp_path):
    return write_bursts(tmp_path / "bursts.csv")


def test_reseeding_and_sensitivity_tell_what_moves_the_answer(bursts):
    asked = question(
        bursts, "ttft_p99=1s", settings={"tensor_parallel": 1}, seeds=8, with_sensitivity=True
    )
    [candidate] = plan(asked).candidates
    again = candidate.reseeding
    assert again is not None
    assert 0 <= again.holds <= again.holds_with_one_more <= again.seeds == 8
    assert (again.suggested == candidate.replicas) == (again.holds >= 0.95 * 8)
    variants = {(v.setting, v.value): v for v in candidate.sensitivity}
    more = variants["rate_scale", "1.5"]
    assert more.change is None or more.change >= 0
    assert len({v.setting for v in candidate.sensitivity}) >= 10
    for variant in candidate.sensitivity:
        assert variant.meets_at_answer == all(c.misses <= c.allowed for c in variant.clauses)
        assert (variant.answer is None) == (variant.reason is not None)


@pytest.mark.parametrize("users", [1, 2, 3, 7, 12, 100])
def test_sizes_around_a_few_users_are_their_neighbours(bursts, users):
    asked = question(bursts, "ttft_p99=9s")
    machine = resolve_settings({"hardware": "L4", "tensor_parallel": 1})
    price = Price(usd_per_hour=1.0, as_of=None, source=None)
    candidate = replace(new_candidate("L4", machine, price, None), users=users)
    ladder = Ladder(asked, Sized(candidate, machine, None))
    fewer = max(1, users - max(1, round(users / 10)))
    assert ladder.safer == fewer
    assert ladder.sizes == sorted({*ladder.sizes, users, users + max(1, round(users / 10))})[::-1]
    assert len(ladder.sizes) == min(5, users + 2)


@pytest.mark.parametrize(
    ("given", "axis"),
    [({}, "utilisation"), ({"num_blocks": 2000}, "num_blocks"), ({"kv_gb": 4.0}, "kv_gb")],
)
def test_every_machine_has_its_pool_varied_and_its_requests_widened(bursts, given, axis):
    asked = question(bursts, "ttft_p99=9s", settings={"tensor_parallel": 1, **given})
    machine = resolve_settings(asked.settings | {"hardware": "L4"})
    alone = run_trial(bursts, machine, asked.slo, False, False, None)
    sized = Sized(plan(asked).candidates[0], machine, alone)
    changes = {(change.setting, change.value) for change in changes_for(sized)}
    pools = {name for name, _ in changes} & {"utilisation", "num_blocks", "kv_gb"}
    assert pools == {axis}
    assert {("num_sequences", 2), ("beam_width", 2), ("preemption", "auto")} <= changes


def test_a_setting_that_does_not_go_with_the_others_is_told_and_moves_nothing(tmp_path):
    """With a batch of one there are neither two answers a prompt nor beams of two."""
    trace = write_bursts(tmp_path / "t.csv", bursts=1, most=1)
    settings = {"tensor_parallel": 1, "max_batch": 1}
    asked = question(trace, "ttft_p99=900s", settings=settings, with_sensitivity=True)
    result = plan(asked)
    variants = {v.setting: v for v in result.candidates[0].sensitivity if not v.was_run}
    assert list(variants) == ["num_sequences", "beam_width"]
    assert "must be at most --max-batch (1)" in (variants["beam_width"].reason or "")
    [told] = [text for text in result.findings if "beam_width" in text]
    assert told.startswith(
        "None of 16 changed settings moves the answer by a replica. Could not be tried: num_sequences=2 ("
    )
    assert page_finding(told, result).figure == "0 of 16"


@pytest.mark.parametrize(
    ("outcomes", "found"),
    [
        ([True, True, None], (2, -1, True, "with 1: it broke")),
        ([True, None], (3, 0, True, "with 2: it broke")),
        ([False, False, None], (None, None, False, "with 5: it broke")),
        ([False, True], (4, 1, False, None)),
        ([True, True, True], (1, -2, True, None)),
        ([False, False, False], (None, None, False, "not even with 5")),
        ([None], (None, None, False, "it broke")),
    ],
)
def test_a_size_that_fails_ends_the_walk_and_what_was_found_stands(bursts, outcomes, found):
    asked = question(bursts, "ttft_p99=9s", settings={"tensor_parallel": 1})
    machine = resolve_settings(asked.settings | {"hardware": "L4"})
    price = Price(usd_per_hour=1.0, as_of=None, source=None)
    candidate = replace(new_candidate("L4", machine, price, None), replicas=3)
    outcome = run_trial(bursts, machine, asked.slo, False, False, None)
    inquiry = vary(
        asked, Sized(candidate, machine, outcome), Change(setting="policy", value="fair")
    )
    results = [
        Failure("it broke", is_ours=False) if m is None else replace(outcome, meets=m)
        for m in outcomes
    ]
    asked_for = next(inquiry)
    for result in results[:-1]:
        assert [job.label.endswith(" x L4 with policy=fair") for job in asked_for] == [True]
        asked_for = inquiry.send([result])
    with pytest.raises(StopIteration) as end:
        inquiry.send([results[-1]])
    variant = end.value.value
    assert (variant.answer, variant.change, variant.meets_at_answer, variant.reason) == found
    assert variant.was_run == (outcomes[0] is not None)
