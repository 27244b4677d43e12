"""A sweep's page: sentences that its figures carry, each axis and each point, every assumption once, and it is written beside the JSON."""

import json

import msgspec
import pytest
import typer
from msgspec.structs import replace
from typer.testing import CliRunner

from sim.report.sweep_page import document
from sim.sweep.cli import sweep as command
from sim.sweep.effects import along, crossed, effect, extremes, figure_of
from sim.sweep.findings import findings
from sim.sweep.result import SweepResult
from tests.sim.report.crowd import crowd
from traces.report.document import Charts, Facts, Heats, Table
from traces.report.html import page


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The folder of a sweep in which a point fails, one loses requests, and others preempt; and its result."""
    folder = tmp_path_factory.mktemp("sweep")
    app = typer.Typer()
    app.command()(command)
    args = ["--axis", "block_size=16,32", "--axis", "rate=1,4", "--axis", "max_batch=8,4096"]
    args += [
        "--set",
        "num_blocks=40",
        "--set",
        "watermark=0",
        "--slo",
        "ttft_p99=500ms,tpot_p50=12ms",
    ]
    out = ["--out", str(folder / "out"), "--html", str(folder / "own.html"), "--workers", "1"]
    result = CliRunner().invoke(app, [str(crowd(folder)), *args, *out])
    assert result.exit_code == 1, result.output
    data = (folder / "out" / "sweep.json").read_bytes()
    return folder, msgspec.json.decode(data, type=SweepResult)


def parts(made, kind):
    return [part for section in made.sections for part in section.parts if isinstance(part, kind)]


def test_a_price_says_what_it_is_of(swept):
    _, result = swept
    charts = [chart for part in parts(document(result, []), Charts) for chart in part.charts]
    prices = {chart.y_title for chart in charts if chart.title == "Price"}
    assert prices == {"USD a million output tokens"}


def test_page_is_written_beside_the_json_and_where_asked(swept):
    folder, result = swept
    text = (folder / "out" / "sweep.html").read_text()
    assert text == (folder / "own.html").read_text()
    assert text == page(document(result, ["sweep.json", "sweep.csv"]))


def test_what_went_wrong_comes_first_and_every_finding_has_a_figure(swept):
    _, result = swept
    found = findings(result)
    assert [f.warm for f in found[:2]] == [True, True]
    assert "4 of 8 points have no figures" in found[0].sentence
    assert "--max-batch (4096)" in found[0].sentence
    assert "of 124." in found[1].sentence
    assert all(f.figure and f.source for f in found)
    made = document(result, [])
    assert [f.sentence for f in made.findings] == [f.sentence for f in found]


def test_the_sentence_about_an_axis_is_its_ratio(swept):
    _, result = swept
    axis = next(a for a in result.axes if a.name == "rate_scale")
    lines = along(result, axis, "ttft_p99_ms")
    ratios = sorted(max(line.values) / min(line.values) for line in lines)
    assert effect(result, axis, "ttft_p99_ms") == pytest.approx(sum(ratios) / 2)
    low, high = extremes(result, "ttft_p99_ms")
    values = [v for p in result.points if (v := figure_of(p, "ttft_p99_ms")) is not None]
    assert figure_of(low, "ttft_p99_ms") == min(values)
    assert figure_of(high, "ttft_p99_ms") == max(values)


def test_many_combinations_are_drawn_as_their_lowest_middle_and_highest(swept):
    _, result = swept
    axis = result.axes[1]
    points = [p for p in result.points if p.figures]
    many = [
        replace(p, settings=p.settings | {"seed": seed}, figures={"x": seed + 1.0})
        for p in points
        for seed in range(5)
    ]
    lines = along(replace(result, points=many), axis, "x")
    assert [line.label.split()[0] for line in lines] == ["highest", "middle", "lowest"]
    assert [line.values for line in lines] == [[5.0] * 2, [3.0] * 2, [1.0] * 2]


def test_every_axis_point_and_assumption_is_there(swept):
    _, result = swept
    made = document(result, [])
    names = {section.name for section in made.sections}
    assert {"axis-block_size", "axis-rate_scale", "axis-max_batch", "two-axes", "rate"} <= names
    table = next(t for t in parts(made, Table) if t.name == "points-table")
    assert len(table.rows) == len(result.points)
    assert sum(bool(row[-1]) for row in table.rows) == 4
    facts = [fact for part in parts(made, Facts) for fact in part.facts]
    assert len(facts) == len(result.assumed) + 3
    block = next(fact for fact in facts if fact.name == "block size" and fact.why == "an axis")
    assert block.value == "16, 32"
    heat = parts(made, Heats)[0].heats[0]
    rows, columns = (
        next(a for a in result.axes if a.name == n) for n in (heat.row_name, heat.column_name)
    )
    shown = crossed(result, rows, columns, "ttft_p99_ms")
    assert [[s is None for s in row] for row in heat.shades] == [
        [v is None for v in r] for r in shown
    ]


def test_goodput_is_never_more_than_what_is_done(swept):
    _, result = swept
    (drawn,) = [c for c in parts(document(result, []), Charts) if c.name == "goodput"]
    done, kept, *each = drawn.charts
    assert (len(each), kept.title) == (2, "TTFT within 500 ms and TPOT within 12 ms")
    for more, less in [(done, kept), *((one, kept) for one in each)]:
        pairs = list(zip(more.curves[:-1], less.curves[:-1], strict=True))
        for a, b in pairs:
            assert all(y <= most + 1e-9 for y, most in zip(b.y, a.y, strict=True))
        assert any(b.y != a.y for a, b in pairs)
    (said,) = (f for f in findings(result) if f.code == "good_per_s")
    assert "of 4 points keep" in said.sentence


def test_a_sweep_without_axes_or_figures_has_a_page(swept):
    _, result = swept
    for points in (result.points[:1], [p for p in result.points if p.error]):
        one = replace(result, axes=[], points=[replace(p, settings={}) for p in points])
        assert "</html>" in page(document(one, []))


def test_the_page_holds_no_figure_that_json_cannot(swept):
    folder, _ = swept
    text = (folder / "out" / "sweep.html").read_text()
    data = text.split('id="data">')[1].split("</script>")[0]
    assert json.loads(data)["heats"] == {"kind": "tabs"}
