"""Promises judged on a measured run: by rows built by hand, by a run in virtual time, and from the command to page, JSON and CSV."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from kilburn import app as kilburn
from tests.traces.client.driving import drive_exactly, request
from tests.traces.client.stub import Stub, running
from tests.traces.client.test_bench import call, row, trace_file
from traces.client.answer import Answer, Usage
from traces.client.figures import BenchCounts
from traces.client.measure import counts
from traces.client.outcomes import Outcomes
from traces.client.promises import compare, goodput_of, judged_text, shown
from traces.judge import Goodput
from traces.slo import parse_slo

MS = 10**6


def outcomes_of(rows) -> Outcomes:
    """Of (due, first, last, tokens, fate) in ms, each sent 7 ms late."""
    outcomes = Outcomes()
    for due, first, last, tokens, fate in rows:
        number = outcomes.send(1, due * MS, (due + 7) * MS, 8, tokens)
        answer = Answer()
        answer.first_ns, answer.last_ns = due * MS + first * MS, due * MS + last * MS
        if fate == "open":
            outcomes.leave(number, answer)
            continue
        answer.usage = Usage(8, tokens) if fate == "done" else None
        outcomes.end(number, answer, None if fate == "done" else fate, due * MS + last * MS)
    return outcomes


def counts_of(outcomes: Outcomes, never_sent: int = 0, *, interrupted: bool = False) -> BenchCounts:
    return counts(outcomes, never_sent, interrupted, {})


class Said:
    """As much of a report as the sentence needs."""

    def __init__(self, requests: BenchCounts, goodput: Goodput) -> None:
        self.requests = requests
        self.goodput = goodput


def test_each_request_is_judged_from_when_it_was_due_and_the_denominator_is_said():
    rows = [
        (0, 50, 90, 5, "done"),  # 10 ms a token
        (10, 51, 91, 5, "done"),  # its first token a millisecond late
        (20, 50, 94, 5, "done"),  # 11 ms a token
        (30, 50, 50, 1, "done"),  # one token has no TPOT
        (40, 5, 9, 5, "timeout"),
        (50, 5, 9, 5, "http 429"),
    ]
    outcomes = outcomes_of(rows)
    slo = parse_slo("ttft_p50=50ms,tpot_p50=10ms,goodput=30%")
    found = counts_of(outcomes, 3)
    kept = goodput_of(outcomes, found, slo, 500 * MS)
    assert (kept.good, kept.judged, kept.good_per_s) == (2, 6, 4.0)
    assert kept.within == {"ttft": 3, "tpot": 3}
    assert [(c.population, c.misses) for c in kept.clauses] == [(6, 3), (5, 3)]
    assert not kept.meets
    assert judged_text(Said(found, kept)) == (
        "Judged: the 6 sent; 2 that failed keep nothing; 3 due after the end are not judged."
    )
    assert goodput_of(outcomes, found, parse_slo("ttft_p50=50ms,goodput=50%"), 1).meets


def test_what_an_interrupted_run_never_sent_is_not_good_and_what_is_open_is_late_or_undecided():
    rows = [
        (0, 50, 90, 5, "done"),
        (0, 60, 70, 5, "open"),  # its TTFT is kept, its end is not known
        (90, 2, 4, 5, "open"),
    ]
    outcomes = outcomes_of(rows)
    found = counts_of(outcomes, 2, interrupted=True)
    kept = goodput_of(outcomes, found, parse_slo("ttft=60ms"), 100 * MS)
    assert (kept.good, kept.judged) == (3, 5)
    kept = goodput_of(outcomes, found, parse_slo("e2e=95ms"), 100 * MS)
    assert (kept.good, kept.judged) == (1, 4)
    assert judged_text(Said(found, kept)) == (
        "Judged: the 3 sent + 2 read and never sent − 1 open at the end and not late yet = 4; 2 that never went keep nothing."
    )
    assert [(c.population, c.misses) for c in kept.clauses] == [(4, 3)]
    in_time = counts_of(outcomes, 2)
    assert goodput_of(outcomes, in_time, parse_slo("e2e=95ms"), 100 * MS).judged == 2


cases = st.lists(
    st.tuples(
        st.integers(0, 100),
        st.integers(1, 40),
        st.integers(0, 40),
        st.integers(1, 4),
        st.sampled_from(["done", "done", "done", "timeout"]),
    ),
    min_size=1,
    max_size=12,
)


@given(cases, st.integers(1, 40), st.integers(1, 30), st.integers(0, 3))
def test_goodput_is_that_of_plain_python(drawn, ttft, tpot, never):
    rows = [(due, first, first + rest, tokens, fate) for due, first, rest, tokens, fate in drawn]
    outcomes = outcomes_of(rows)
    found = counts_of(outcomes, never, interrupted=True)
    slo = parse_slo(f"ttft={ttft}ms,tpot={tpot}ms")
    kept = goodput_of(outcomes, found, slo, 1000 * MS)
    in_ttft = [fate == "done" and first <= ttft for _, first, _, _, fate in rows]
    in_tpot = [
        fate == "done" and (tokens == 1 or last - first <= tpot * (tokens - 1))
        for _, first, last, tokens, fate in rows
    ]
    both = sum(a and b for a, b in zip(in_ttft, in_tpot, strict=True))
    assert (kept.good, kept.judged) == (both, len(rows) + never)
    assert kept.within == {"ttft": sum(in_ttft), "tpot": sum(in_tpot)}


def test_a_request_that_is_open_at_the_end_keeps_its_first_token():
    driver = drive_exactly(Stub(ttft_s=0.1, gap_s=10.0), [request(0.0), request(0.35)], stop_after_s=0.4)  # fmt: skip
    found = counts(driver.outcomes, driver.never_sent, driver.interrupted, driver.said)
    kept = goodput_of(driver.outcomes, found, parse_slo("ttft=200ms"), driver.end_ns)
    assert (found.unfinished, kept.good, kept.judged) == (2, 1, 1)


def test_goodputs_are_laid_side_by_side_only_where_the_limits_are_the_same():
    outcomes = outcomes_of([(0, 50, 90, 5, "done"), (0, 99, 100, 5, "done")])
    found = counts_of(outcomes)

    def judged(slo):
        return goodput_of(outcomes, found, parse_slo(slo), 1000 * MS)

    here, there = judged("ttft=50ms"), replace(judged("ttft_p90=50ms,goodput=9%"), good_share=1.0)
    figures, apart = compare(here, there)
    assert apart is None
    assert [(f.name, f.measured, f.predicted, f.error) for f in figures] == [
        ("good requests", 1.0, 1.0, 0.0),
        ("good share", 0.5, 1.0, 1.0),
    ]
    assert shown(figures[1], figures[1].measured) == "50 %"
    assert compare(here, judged("ttft=51ms"))[0] == []
    assert "judged by ttft_p99=50ms,e2e_p99=1s" in str(compare(here, judged("ttft=50ms,e2e=1s"))[1])
    assert "without --slo" in str(compare(here, None)[1])
    assert compare(None, there) == ([], None)


def test_promises_are_told_everywhere_and_laid_beside_the_prediction(tmp_path):
    """Limits that no machine comes near: a first token is 50 ms away at least, and an answer takes no minute."""
    trace = trace_file(tmp_path, [row(0.05 * i) for i in range(4)])
    slo = ("--slo", "ttft_p99=20ms,e2e=60s,goodput=10%")
    predicted, out, page = tmp_path / "p.json", tmp_path / "out.json", tmp_path / "out.html"
    args = ["replay", trace, "--json", str(predicted), "--hardware", "H100"]
    assert CliRunner().invoke(kilburn, [*args, *slo]).exit_code == 0
    other = json.loads(predicted.read_text())
    with running(Stub(ttft_s=0.05)) as url:
        result = call(url, trace, *slo, "--against", predicted, "--html", page)
        predicted.write_text(json.dumps(other | {"goodput": None}))
        alone = call(url, trace, *slo, "--against", predicted)
    assert result.exit_code == 0, result.output
    report, words = json.loads(out.read_text()), " ".join(result.output.split())
    kept = report["goodput"]
    assert (kept["good"], kept["judged"], kept["meets"]) == (0, 4, False)
    assert kept["within"] == {"ttft": 0, "e2e": 4}
    assert kept["slo"]["goodput"] == 0.1
    assert list(kept) == list(other["goodput"]), "named as a replay's"
    said = "0 of 4, by themselves TTFT 0, E2E 4; the promise ttft_p99=20ms,e2e_p99=60s,goodput=0.1 is not kept"
    assert said in words
    assert "Judged: the 4 sent." in words
    (finding,) = (f for f in report["findings"] if f["code"] == "goodput")
    assert said in finding["sentence"]
    assert "Judged: the 4 sent." in finding["source"]
    assert "The prediction has" in finding["sentence"]
    assert said in page.read_text().replace("\u00a0", " ")
    by_name = {f["name"]: f for f in report["against"]["figures"]}
    assert by_name["good share"]["measured"] == 0
    assert by_name["good share"]["predicted"] == 1
    assert "goodput.good,0\n" in (tmp_path / "out-csv" / "figures.csv").read_text()
    assert "good share,share,0.0,1.0," in (tmp_path / "out-csv" / "against.csv").read_text()
    assert "made without --slo" in " ".join(alone.output.split())


@pytest.mark.parametrize("slo", ["goodput=95%", "ttft=2", "first=1s"])
def test_a_promise_that_is_not_understood_ends_before_the_server_is_asked(tmp_path, slo):
    result = call("http://127.0.0.1:9", trace_file(tmp_path, [row(0)]), "--slo", slo)
    assert result.exit_code == 2
    assert "--slo" in result.stderr
