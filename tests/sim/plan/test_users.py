"""Crowds of users of a session trace: who they are, and how many fit."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from engine.core.errors import ConfigError
from sim.plan.findings import findings_of
from sim.plan.users import PAUSE_NS, Crowd, crowd_requests, run_users
from sim.report.plan_findings import page_finding
from sim.report.plan_page import document
from sim.sweep.axes import resolve_settings
from tests.sim.plan.worlds import plan, question, write_bursts, write_sessions
from traces.figures import encode_figures
from traces.formats import open_trace
from traces.schema import ROOT
from traces.transforms import units

CROWD = Crowd(users=6, watched_s=120.0, warm_up_s=20.0, seed=3)


@pytest.fixture
def trace(tmp_path):
    return write_sessions(tmp_path / "sessions.jsonl")


@pytest.fixture
def sessions(trace):
    return list(units(open_trace(trace).requests()))


def test_fewer_users_are_the_same_users(sessions):
    def without_ids(rows):
        return [replace(row, hash_ids=type(row.hash_ids)("q")) for row in rows]

    many = without_ids(crowd_requests(sessions, CROWD))
    few = without_ids(crowd_requests(sessions, replace(CROWD, users=4)))
    assert [row for row in many if row.session < 4] == few
    assert {row.session for row in many} == set(range(6))


def test_a_user_runs_sessions_one_after_another_for_as_long_as_is_watched(sessions):
    shapes = {tuple((row.num_prompt, row.num_output) for row in rows) for rows in sessions}
    for rows in units(crowd_requests(sessions, CROWD)):
        assert [row.turn for row in rows] == list(range(len(rows)))
        assert 0 <= rows[0].arrival_ns <= 20 * 10**9
        assert [row.after for row in rows].count(ROOT) == 1
        assert all(row.after < row.turn for row in rows)
        begins = [
            n for n, row in enumerate(rows) if n and row.think_ns == PAUSE_NS and row.after == n - 1
        ]
        edges = [0, *begins, len(rows)]
        parts = [rows[a:b] for a, b in pairwise(edges)]
        assert {tuple((r.num_prompt, r.num_output) for r in part) for part in parts} <= shapes
        assert rows[0].arrival_ns + sum(row.think_ns for row in rows) + PAUSE_NS >= 140 * 10**9


def test_no_two_sessions_of_a_crowd_share_a_block(sessions):
    seen: dict[int, int] = {}
    for rows in units(crowd_requests(sessions, CROWD)):
        run = 0
        for row in rows:
            run += row.turn > 0 and row.think_ns == PAUSE_NS
            for block in row.hash_ids:
                assert seen.setdefault(block, row.session * 1000 + run) == row.session * 1000 + run


def test_more_users_send_more_and_the_warm_up_is_not_judged(trace):
    machine = resolve_settings({"hardware": "L4", "tensor_parallel": 1})
    asked = question(trace, "ttft_p99=5s")
    sent = []
    for users in (1, 3, 6):
        crowd = replace(CROWD, users=users)
        outcome = run_users(trace, machine, asked.slo, False, False, crowd)
        sent.append(outcome.submitted)
        assert outcome.simulated_s <= 140
        judged = outcome.clauses[0].population + outcome.undecided
        assert judged >= outcome.submitted - outcome.warm_up - outcome.unfinished
        assert outcome.clauses[0].population <= outcome.submitted - outcome.warm_up
        assert outcome.submitted == outcome.done + outcome.unfinished
    assert sent == sorted(sent)


@pytest.mark.parametrize("limit", ["300ms", "600ms", "1s"])
def test_the_most_users_are_those_of_trying_every_number(trace, limit):
    asked = question(trace, f"ttft_p90={limit}", settings={"tensor_parallel": 1}, max_users=10)
    [candidate] = plan(asked, users=True).candidates
    machine = resolve_settings({"hardware": "L4", "tensor_parallel": 1})
    holds = [
        run_users(trace, machine, asked.slo, False, False, replace(asked.crowd, users=users)).meets
        for users in range(1, 11)
    ]
    if candidate.users is None:
        assert not holds[0] or not all(holds[:3])
    else:
        assert all(holds[max(0, candidate.users - 3) : candidate.users])
        if candidate.monotone and candidate.users < 10:
            assert not holds[candidate.users]
    assert candidate.at_least == (candidate.users == 10)


def test_a_users_plan_prices_the_user_hour_and_repeats_itself(trace):
    asked = question(trace, "ttft_p90=600ms", settings={"tensor_parallel": 1}, seeds=2, max_users=6)
    result = plan(asked, ["L4", "H100"], users=True)
    assert result.mode == "users"
    for candidate in result.candidates:
        assert candidate.users
        assert candidate.usd_per_device_hour is not None
        assert candidate.usd_per_user_hour == pytest.approx(
            candidate.usd_per_device_hour / candidate.users
        )
    assert "can work at once on" in result.findings[0]
    assert encode_figures(plan(asked, ["L4", "H100"], users=True, count=2)) == encode_figures(
        result
    )


def test_a_search_that_stops_while_all_fit_says_at_least(trace):
    asked = question(trace, "ttft_p90=1m", settings={"tensor_parallel": 1}, max_users=2)
    result = plan(asked, ["L4", "H100"], users=True)
    assert [(c.users, c.at_least) for c in result.candidates] == [(2, True)] * 2
    assert result.findings[0].startswith("At least 2 users can work at once on 1 x L4")
    assert result.findings[0].endswith("the search stopped at 2, and more may fit (--max-users).")
    assert any("On 1 x H100 it is at least 2 users" in said for said in result.findings)
    made = document(result, [])
    assert made.findings[0].figure == "≥ 2 users"
    table = next(
        p for s in made.sections for p in s.parts if getattr(p, "name", "") == "machine-table"
    )
    assert [row[1] for row in table.rows] == ["≥ 2", "≥ 2"]


@pytest.mark.parametrize(
    ("users", "exceptions", "said"),
    [
        (1, [2], "2 users fail though more do not; the answer is the most below them."),
        (2, [3], "3 users fail though more do not; 1 and 2 both hold, so the answer is 2."),
        (7, [8, 9], "8, 9 users fail though more do not; 5, 6 and 7 all hold, so the answer is 7."),
    ],
)
def test_users_that_are_not_monotone_are_told_with_the_sizes_that_hold(
    trace, users, exceptions, said
):
    asked = question(trace, "ttft_p90=1m", settings={"tensor_parallel": 1}, max_users=1)
    result = plan(asked, users=True)
    [candidate] = result.candidates
    [point] = candidate.points
    moved = replace(
        candidate,
        users=users,
        exceptions=exceptions,
        points=[replace(point, users=size) for size in range(1, users + 1)],
    )
    assert findings_of(replace(result, candidates=[moved]))[-1].endswith(said)


def test_the_sentence_of_a_users_plan_says_how_many_requests_were_judged(trace):
    asked = question(trace, "ttft_p90=1m", settings={"tensor_parallel": 1}, max_users=1)
    for seeds in (0, 2):
        result = plan(replace(asked, seeds=seeds), users=True)
        [point] = result.candidates[0].points
        judged = f"{point.clauses[0].population:,} requests"
        assert judged in next(said for said in result.findings if said.startswith("How sure: "))


def test_where_goodput_binds_the_sentences_give_shares(trace):
    asked = question(trace, "ttft_p10=1m,goodput=90%", settings={"tensor_parallel": 1}, max_users=2)
    result = plan(asked, users=True)
    [candidate] = result.candidates
    one, two = candidate.points
    last = replace(two, meets=False, good_share=0.85)
    moved = replace(candidate, users=1, at_least=False, points=[one, last])
    moved_result = replace(result, candidates=[moved])
    said = findings_of(moved_result)
    assert any("and 100 % keep all limits" in each for each in said)
    tighter = (
        "One user more misses goodput: 85 % of requests keep all limits at once, and 90 % are to."
    )
    assert tighter in said
    shown = page_finding(tighter, moved_result)
    assert shown.figure.replace("\u00a0", " ") == "85 %"
    assert shown.source == "Requests that keep all limits in the simulation with one user more."


def test_requests_that_the_context_cannot_hold_end_their_session_or_count_as_misses(trace):
    machine = resolve_settings({"hardware": "L4", "tensor_parallel": 1, "max_context": 1500})
    slo = question(trace, "ttft_p99=5s").slo
    whole = run_users(trace, machine, slo, False, False, CROWD)
    assert whole.rejected["context_exceeded"] > 0
    assert not whole.meets
    fitting = run_users(trace, machine, slo, False, True, CROWD)
    assert not fitting.rejected
    assert fitting.left_out > 0
    total = sum(1 for _ in open_trace(trace).requests())
    kept = sum(len(rows) for rows in units(open_trace(trace).requests()))
    assert kept == total
    tiny = resolve_settings({"hardware": "L4", "tensor_parallel": 1, "max_context": 10})
    with pytest.raises(ConfigError, match="no session has a request that fits 10 tokens"):
        run_users(trace, tiny, slo, False, True, CROWD)


def test_users_need_sessions(tmp_path):
    with pytest.raises(ConfigError, match="--users needs a trace of sessions"):
        plan(question(write_bursts(tmp_path / "t.csv"), "ttft=2s"), users=True)


def test_sessions_with_arrivals_are_a_fleet_question_too(trace):
    asked = question(
        trace, "ttft_p90=2s", settings={"tensor_parallel": 1, "arrivals": "every:5"}, seeds=2
    )
    result = plan(asked)
    assert result.mode == "fleet"
    assert result.best == 0
    assert result.trace.sessions == 5


def test_block_ids_of_64_bits_are_shared_within_a_session_and_nowhere_else(tmp_path):
    header = '{"format":"kilburn-trace","version":1,"hash_block_tokens":16}\n'
    low, high = -(2**63), 2**63 - 1
    lines = [
        f'{{"arrival_ns":0,"num_prompt":{16 * (turn + 1)},"num_output":4,'
        f'"hash_ids":{[low, high, 7][: turn + 1]},"session":0,"turn":{turn},"after":{turn - 1}}}\n'
        for turn in range(3)
    ]
    trace = tmp_path / "wide.jsonl"
    trace.write_text(header + "".join(lines))
    asked = question(trace, "ttft_p99=30s")
    machine = resolve_settings(asked.settings | {"hardware": "L4"}, asked.files)
    outcome = run_users(trace, machine, asked.slo, False, False, CROWD)
    assert outcome.hashed
    assert outcome.done
    assert not outcome.rejected
