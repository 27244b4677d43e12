"""Judgements of ledgers, against judging each request by itself in plain Python."""

import math

from hypothesis import given
from hypothesis import strategies as st

from sim.judge import judge_ledger
from sim.ledger import NEVER, Ledger, State
from tests.reference.sizing import is_good, keeps, latency_ns
from traces.judge import Populations
from traces.report.promises import goodput_text
from traces.slo import Clause, Slo

MS = 10**6
END = 10_000 * MS

requests = st.lists(
    st.tuples(
        st.integers(0, 50),  # ms to the next arrival
        st.integers(1, 4),  # tokens
        st.integers(1, 60),  # ms to the first
        st.integers(0, 60),  # ms for each other
        st.sampled_from(["done", "done", "done", "rejected", "failed"]),
    ),
    min_size=1,
    max_size=40,
)
slos = st.builds(
    lambda clauses, goodput: Slo(clauses=tuple(clauses), goodput=goodput),
    st.lists(
        st.builds(
            Clause,
            metric=st.sampled_from(["ttft", "tpot", "e2e"]),
            percentile=st.sampled_from([50.0, 90.0, 99.0, 100.0]),
            limit_ms=st.integers(1, 120).map(float),
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([None, 0.5, 0.7, 0.8, 0.9, 1.0]),
)


def ledger_at(rows, now):
    """The ledger as it stands at `now`, of requests that have arrived by then."""
    ledger = Ledger()
    arrival = 0
    for gap, tokens, first, each, fate in rows:
        arrival += gap * MS
        if arrival > now:
            break
        number = ledger.arrive(arrival, 10, tokens)
        if fate == "rejected":
            ledger.reject(number, "pool_exceeded", arrival)
            continue
        first_at = arrival + first * MS
        end_at = first_at + each * MS * (tokens - 1)
        if first_at <= now:
            ledger.first_token(number, first_at)
        if end_at <= now:
            ledger.end(number, end_at, done=fate == "done")
    return ledger


@given(requests, slos)
def test_a_judgement_is_that_of_plain_python(rows, slo):
    ledger = ledger_at(rows, END)
    judgement = judge_ledger(ledger, END).judge(slo)
    assert judgement.meets == keeps(ledger, slo)
    assert judgement.undecided == 0
    for clause, figure in zip(slo.clauses, judgement.clauses, strict=True):
        values = [latency_ns(ledger, n, clause.metric) for n in range(len(ledger))]
        known = sorted(value for value in values if value is not None)
        assert figure.population == len(known)
        assert figure.misses == sum(value > clause.limit_ns for value in known)
        if known:
            at = known[len(known) - figure.allowed - 1]
            assert figure.value_ms == (at / MS if at < math.inf else None)
            assert (figure.misses <= figure.allowed) == (at <= clause.limit_ns)


several = st.builds(
    lambda *limits: Slo(
        clauses=tuple(
            Clause(metric=metric, percentile=99.0, limit_ms=float(limit))
            for metric, limit in zip(("ttft", "tpot", "e2e"), limits, strict=True)
        )
    ),
    st.integers(10, 50), st.integers(10, 50), st.integers(60, 200),
)  # fmt: skip


@given(requests, slos | several)
def test_goodput_is_a_count_of_requests_judged_one_by_one(rows, slo):
    ledger = ledger_at(rows, END)
    kept = judge_ledger(ledger, END).goodput(slo, 4.0)
    good = sum(is_good(ledger, number, slo) for number in range(len(ledger)))
    assert (kept.good, kept.judged, kept.good_per_s) == (good, len(ledger), good / 4)
    assert kept.good_share == good / len(ledger)
    assert kept.meets == keeps(ledger, slo)
    for metric in slo.metrics:
        only = Slo(clauses=tuple(c for c in slo.clauses if c.metric == metric))
        assert kept.within[metric] == sum(is_good(ledger, n, only) for n in range(len(ledger)))
        assert kept.within[metric] >= kept.good


def test_nine_of_ten_within_each_limit_can_be_eight_of_ten_within_both():
    ledger = Ledger()
    for number in range(10):
        request = ledger.arrive(0, 1, 2)
        first = 3 * MS if number == 0 else MS
        ledger.first_token(request, first)
        ledger.end(request, first + (20 * MS if number == 1 else 5 * MS), done=True)
    clauses = tuple(
        Clause(metric=metric, percentile=90.0, limit_ms=limit)
        for metric, limit in (("ttft", 2.0), ("tpot", 10.0))
    )
    kept = judge_ledger(ledger, END).goodput(Slo(clauses=clauses, goodput=0.9), 1.0)
    assert (kept.within, kept.good, kept.good_share) == ({"ttft": 9, "tpot": 9}, 8, 0.8)
    assert [clause.misses <= clause.allowed for clause in kept.clauses] == [True, True]
    assert not kept.meets
    assert judge_ledger(ledger, END).goodput(Slo(clauses=clauses, goodput=0.8), 1.0).meets


def test_what_keeps_one_limit_and_is_open_for_another_is_counted_for_neither():
    ledger = Ledger()
    done, still_open = ledger.arrive(0, 1, 2), ledger.arrive(0, 1, 2)
    for request in (done, still_open):
        ledger.first_token(request, MS)
    ledger.end(done, 2 * MS, done=True)
    clauses = tuple(
        Clause(metric=metric, percentile=90.0, limit_ms=50.0) for metric in ("ttft", "tpot")
    )
    kept = judge_ledger(ledger, 3 * MS).goodput(Slo(clauses=clauses), 1.0)
    assert (kept.good, kept.judged, kept.within) == (1, 1, {"ttft": 1, "tpot": 1})


def test_an_answer_that_no_limit_covers_is_good_once_it_is_there():
    ledger = Ledger()
    done, still_open = ledger.arrive(0, 1, 1), ledger.arrive(0, 1, 1)
    ledger.first_token(done, MS)
    ledger.end(done, MS, done=True)
    slo = Slo(clauses=(Clause(metric="tpot", percentile=99.0, limit_ms=10.0),))
    kept = judge_ledger(ledger, 2 * MS).goodput(slo, 1.0)
    assert (kept.good, kept.judged, kept.within) == (1, 1, {"tpot": 1})
    ledger.reject(still_open, "pool_exceeded", 3 * MS)
    kept = judge_ledger(ledger, 3 * MS).goodput(slo, 1.0)
    assert (kept.good, kept.judged) == (1, 2)


def test_where_nothing_is_known_no_promise_is_said_to_be_kept():
    ledger = Ledger()
    ledger.arrive(0, 1, 1)
    slo = Slo(clauses=(Clause(metric="ttft", percentile=99.0, limit_ms=10.0),))
    kept = judge_ledger(ledger, MS).goodput(slo, 0.001)
    assert kept.judged == 0
    said = goodput_text(kept)
    assert (
        said == "Of no request it is known whether it keeps TTFT within 10 ms: the run ends before"
    )


@given(requests, slos, st.integers(0, 2000))
def test_a_run_that_is_given_up_would_have_failed(rows, slo, now_ms):
    now = now_ms * MS
    most = Populations(len(rows), sum(tokens > 1 for _, tokens, *_ in rows))
    if judge_ledger(ledger_at(rows, now), now).is_hopeless(slo, most):
        assert not keeps(ledger_at(rows, END), slo)


@given(requests, slos)
def test_at_the_end_hopeless_and_missed_are_the_same(rows, slo):
    ledger = ledger_at(rows, END)
    most = Populations(len(rows), sum(tokens > 1 for _, tokens, *_ in rows))
    judge = judge_ledger(ledger, END)
    if slo.goodput is None:
        assert judge.is_hopeless(slo, most) != judge.judge(slo).meets


@given(requests, slos, st.integers(0, 2000))
def test_a_run_that_was_cut_off_counts_each_request_late_good_or_undecided(rows, slo, now_ms):
    now = now_ms * MS
    ledger, whole = ledger_at(rows, now), ledger_at(rows, END)
    judge = judge_ledger(ledger, now)
    final = judge_ledger(whole, END)
    good, known = judge.good(slo)
    at_end, _ = final.good(slo)
    assert judge.judge(slo).undecided == len(ledger) - int(known.sum())
    lasting = [n for n in range(len(ledger)) if known[n] and whole.state[n] != State.FAILED]
    assert all(good[n] == at_end[n] for n in lasting)
    for clause in slo.clauses:
        assert judge.misses(clause) <= final.misses(clause)


@given(requests, slos, st.integers(0, 1000))
def test_what_came_before_the_warm_up_ended_is_not_judged(rows, slo, from_ms):
    whole = ledger_at(rows, END)
    later = Ledger()
    for number in range(len(whole)):
        if whole.arrival_ns[number] < from_ms * MS:
            continue
        at = later.arrive(whole.arrival_ns[number], 10, whole.num_output[number])
        if whole.first_token_ns[number] != NEVER:
            later.first_token(at, whole.first_token_ns[number])
        if whole.state[number] == State.REJECTED:
            later.reject(at, "x", whole.end_ns[number])
        else:
            later.end(at, whole.end_ns[number], done=whole.state[number] == State.DONE)
    assert judge_ledger(whole, END, from_ms * MS).judge(slo) == judge_ledger(later, END).judge(slo)


def test_a_goodput_that_is_just_reached_is_not_hopeless():
    for number in range(1, 21):
        ledger = Ledger()
        for _ in range(number):
            ledger.arrive(0, 1, 1)
        for late in range(number + 1):
            for request in range(number):
                ledger.first_token_ns[request] = ledger.end_ns[request] = 2 * MS
                ledger.state[request] = State.DONE
            for request in range(late):
                ledger.end_ns[request] = 3 * MS
            judge = judge_ledger(ledger, END)
            for percent in range(5, 101, 5):
                slo = Slo(
                    clauses=(Clause(metric="e2e", percentile=0.01, limit_ms=2.0),),
                    goodput=percent / 100,
                )
                if late < number:
                    meets = judge.judge(slo).meets
                    assert judge.is_hopeless(slo, Populations(number, 0)) != meets


def test_times_far_from_the_start_are_judged_to_the_nanosecond():
    ledger = Ledger()
    far = 2**61 + 1
    for over in (0, 1):
        request = ledger.arrive(far, 1, 1)
        ledger.first_token(request, far + 5 * MS + over)
        ledger.end(request, far + 5 * MS + over, done=True)
    clause = Clause(metric="ttft", percentile=99.0, limit_ms=5.0)
    assert judge_ledger(ledger, far + END).misses(clause) == 1
