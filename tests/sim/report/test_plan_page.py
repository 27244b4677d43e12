"""A plan's page: every sentence of the plan, each with a figure; every point in a table; the answer where it belongs."""

import msgspec
import pytest
import typer
from msgspec.structs import replace
from typer.testing import CliRunner

from sim.plan.cli import plan as command
from sim.plan.findings import point_at
from sim.plan.result import PlanResult
from sim.report.plan_findings import page_finding
from sim.report.plan_page import MOST_FINDINGS, document
from tests.sim.plan.worlds import write_bursts
from traces.report.document import Charts, Table, Words
from traces.report.html import page


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The folder of a plan, and its result."""
    folder = tmp_path_factory.mktemp("plan")
    trace = write_bursts(folder / "bursts.csv")
    app = typer.Typer()
    app.command()(command)
    args = ["--slo", "ttft_p99=1s,tpot_p99=80ms", "--hardware", "H100,L4", "--seeds", "2"]
    result = CliRunner().invoke(
        app, [str(trace), *args, "--out", str(folder / "out"), "--html", str(folder / "own.html")]
    )
    assert result.exit_code == 0, result.output
    text = (folder / "out" / "plan.json").read_bytes()
    return folder, msgspec.json.decode(text, type=PlanResult)


def parts(made, kind):
    return [part for section in made.sections for part in section.parts if isinstance(part, kind)]


def test_page_is_written_beside_the_json_and_where_asked(planned):
    folder, result = planned
    text = (folder / "out" / "plan.html").read_text()
    assert text == (folder / "own.html").read_text()
    assert text == page(document(result, ["plan.json", "plan.csv"]))


def test_every_sentence_is_there_and_those_that_open_have_figures(planned):
    _, result = planned
    made = document(result, [])
    opening = [finding.sentence for finding in made.findings]
    assert opening == result.findings[:MOST_FINDINGS]
    rest = [line for part in parts(made, Words) for line in part.lines]
    assert set(result.findings[MOST_FINDINGS:]) | set(result.assumptions) <= set(rest)
    for finding in made.findings:
        assert finding.figure, finding.sentence
        assert finding.source
        assert finding.picture, finding.sentence


def test_every_point_and_machine_has_a_row_and_the_answer_is_marked(planned):
    _, result = planned
    tables = {table.name: table for table in parts(document(result, []), Table)}
    assert len(tables["machine-table"].rows) == len(result.candidates)
    points = sum(len(candidate.points) for candidate in result.candidates)
    assert len(tables["points-table"].rows) == points
    assert [row[-1] for row in tables["machine-table"].rows].count("the answer") == 1
    answers = [row[-1] for row in tables["points-table"].rows].count("meets: the answer")
    assert answers == sum(candidate.feasible for candidate in result.candidates)
    best = result.candidates[result.best]
    assert len(tables["variant-table"].rows) == len(best.sensitivity)


def test_memory_adds_up_to_the_pool_and_every_figure_has_a_meaning(planned):
    _, result = planned
    best = result.candidates[result.best]
    point = next(p for p in best.points if p.replicas == best.replicas)
    seen = point.memory
    assert seen.token_states + seen.unused + seen.rounding + seen.free == pytest.approx(1)
    tables = {table.name: table for table in parts(document(result, []), Table)}
    shares = [float(row[1].removesuffix(" %")) for row in tables["hindsight"].rows]
    assert sum(shares) == pytest.approx(100, abs=0.3)
    for name in ("machine-table", "points-table", "variant-table"):
        for column in tables[name].columns:
            assert column.text or column.help, (name, column.title)


def test_goodput_never_exceeds_what_was_offered(planned):
    _, result = planned
    drawn = {charts.name: charts for charts in parts(document(result, []), Charts)}
    (chart,) = drawn["goodput"].charts
    *kept, offered = chart.curves
    for curve in kept:
        assert curve.x == offered.x[1:]
        assert all(y <= most + 1e-9 for y, most in zip(curve.y, offered.y[1:], strict=True))
    assert {c.title.split()[0] for c in drawn["frontier"].charts} == {"ttft_p99", "tpot_p99"}


def test_plan_without_an_answer_still_has_its_page(tmp_path):
    trace = write_bursts(tmp_path / "bursts.csv")
    app = typer.Typer()
    app.command()(command)
    out = tmp_path / "out"
    result = CliRunner().invoke(
        app, [str(trace), "--slo", "ttft_p99=1ms", "--hardware", "L4", "--quick", "--out", str(out)]
    )
    assert result.exit_code == 1, result.output
    assert "cannot do it" in (out / "plan.html").read_text()


def test_goodput_is_of_requests_that_keep_all_limits_and_each_limit_alone_lets_more_pass(planned):
    _, result = planned
    best = result.candidates[result.best]
    (chart,) = {c.name: c for c in parts(document(result, []), Charts)}["goodput"].charts
    joint, *each = chart.curves[:-1]
    assert joint.label == "within all at once"
    assert [curve.label for curve in each] == ["within ttft_p99", "within tpot_p99"]
    shares = {float(v.value): v.good_share for v in best.sensitivity if v.setting == "rate_scale"}
    shares[1.0] = point_at(best, best.replicas).good_share
    span = result.trace.requests / result.trace.span_s
    assert joint.y == pytest.approx([span * at * shares[at] for at in sorted(shares)])
    for curve in each:
        assert all(y <= more + 1e-9 for y, more in zip(joint.y, curve.y, strict=True))


def test_the_goodput_chart_offers_the_rate_that_was_simulated(planned):
    _, result = planned
    best = result.candidates[result.best]
    seen = result.trace.requests / result.trace.span_s  # of the trace as it was scaled
    for base in (1.0, 2.0):
        scaled = [
            replace(v, base=f"{base:g}", value=f"{base * float(v.value):g}")
            for v in best.sensitivity
            if v.setting == "rate_scale"
        ]
        other = list(result.candidates)
        other[result.best] = replace(best, sensitivity=scaled)
        made = document(replace(result, candidates=other), [])
        (chart,) = {charts.name: charts for charts in parts(made, Charts)}["goodput"].charts
        assert chart.curves[-1].x[1] == pytest.approx(seen)


def test_a_machine_whose_name_begins_like_another_keeps_its_own_figure(planned):
    _, result = planned
    one, two = result.candidates
    pair = [
        replace(one, hardware="L40S", replicas=7, devices=7),
        replace(two, hardware="L4", replicas=3, devices=3),
    ]
    for candidates in (pair, pair[::-1]):
        made = replace(result, candidates=candidates, best=0)
        for candidate in pair:
            sentence = f"{candidate.replicas} x {candidate.hardware} would do it too."
            assert (
                page_finding(sentence, made).figure
                == f"{candidate.replicas} × {candidate.hardware}"
            )


def test_a_replica_of_several_devices_is_called_so_in_table_and_charts(planned):
    _, result = planned
    one, two = result.candidates
    pair = [replace(one, tensor_parallel=2), replace(two, tensor_parallel=1)]
    made = document(replace(result, candidates=pair), [])
    names = {f"2 x {one.hardware}", two.hardware}
    (table,) = (table for table in parts(made, Table) if table.name == "points-table")
    assert {row[0] for row in table.rows} == names
    drawn = {charts.name: charts for charts in parts(made, Charts)}
    for chart in drawn["frontier"].charts:
        assert {curve.label for curve in chart.curves} == names


def test_hardware_that_costs_nothing_has_its_page(planned):
    _, result = planned
    free = [
        replace(
            c,
            usd_per_device_hour=0.0,
            cost=c.cost
            and replace(
                c.cost,
                usd_per_hour=0.0,
                usd_per_million_output_tokens=0.0,
                usd_per_million_tokens=0.0,
            ),
        )
        for c in result.candidates
    ]
    assert page(document(replace(result, candidates=free), []))
