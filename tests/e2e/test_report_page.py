"""Reports in a real browser: it asks for nothing, one pointer reads all charts, tables sort and search, paper has everything."""

import json

import pytest
import typer
from typer.testing import CliRunner

from sim.cli import replay as command
from sim.plan.cli import plan
from sim.sweep.cli import sweep
from tests.e2e.browser import browser, keep_picture, needs_browser, page_of
from tests.sim.plan.worlds import write_bursts
from tests.sim.report.crowd import FLAGS, crowd
from tests.traces.client.stub import Stub, running
from traces.client.cli import bench

pytestmark = needs_browser


@pytest.fixture(scope="module")
def chromium(run):
    # The client's event loop must be over before the browser's begins.
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A replay that preempts and rejects: its page's address, and its figures."""
    folder = tmp_path_factory.mktemp("report")
    app = typer.Typer()
    app.command()(command)
    page = folder / "run.html"
    result = CliRunner().invoke(app, [str(crowd(folder)), *FLAGS, "--html", str(page)])
    assert result.exit_code == 0, result.output
    return page.as_uri(), json.loads((folder / "run.json").read_text())


def ready(page):
    page.locator("html[data-ready]").wait_for(state="attached")


def test_page_asks_for_nothing_and_opens_with_its_findings(chromium, report):
    url, figures = report
    with page_of(chromium, url) as page:
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.reload()
        ready(page)
        page.wait_for_timeout(200)
        assert [a for a in asked if not a.startswith("data:")] == [url]
        said = page.locator(".findings .sentence").all_inner_texts()
        assert [s.replace("\xa0", " ") for s in said] == [
            f["sentence"] for f in figures["findings"]
        ]
        assert page.locator(".findings .picture svg, .findings .picture i").count() >= len(said)


def test_pointer_reads_every_series_at_one_time(chromium, report):
    url, figures = report
    with page_of(chromium, url) as page:
        ready(page)
        plots = page.locator("#over-time figure .plot")
        cells = page.locator("#over-time dd")
        rest = cells.all_inner_texts()
        plots.first.scroll_into_view_if_needed()
        box = plots.first.bounding_box()
        page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 20)
        series = figures["over_time"]
        wanted = 0.6 * series["end_s"][-1]
        at = next(i for i, end in enumerate(series["end_s"]) if end >= wanted)
        names = [
            "free_tokens",
            "cached_tokens",
            "unused_tokens",
            "used_tokens",
            "running",
            "waiting",
        ]
        shown = [float(t.replace(",", "")) for t in cells.all_inner_texts()[:6]]
        assert shown == pytest.approx([series[n][at] for n in names], rel=0.02, abs=0.5)
        crosses = page.locator("#over-time .cross").evaluate_all(
            "all => all.map((c) => [getComputedStyle(c).display, c.style.left])"
        )
        assert len(crosses) == plots.count()
        assert len({tuple(c) for c in crosses}) == 1
        assert crosses[0][0] == "block"
        page.mouse.move(5, 5)
        assert cells.all_inner_texts() == rest


def test_keyboard_moves_the_pointer_and_says_the_values(chromium, report):
    url, _ = report
    with page_of(chromium, url) as page:
        ready(page)
        page.locator("#over-time").focus()
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        said = page.locator("#over-time .say").inner_text()
        assert "free " in said
        assert "running " in said
        page.keyboard.press("Escape")
        assert page.locator("#over-time .say").inner_text() == ""
        page.locator("#latency-charts").focus()
        page.keyboard.press("ArrowUp")
        assert "50.0 % within" in page.locator("#latency-charts .say").inner_text()


def test_map_shows_the_peak_and_every_moment_has_a_tab(chromium, report):
    url, figures = report
    with page_of(chromium, url) as page:
        ready(page)
        tabs = page.get_by_role("tab")
        assert tabs.all_inner_texts() == ["Peak", "First preemption", "End"]
        counts = "(i) => [2, 3, 4].map((s) => document.querySelectorAll('.map')[i].view.counts[s]).reduce((a, b) => a + b)"
        assert page.evaluate(counts, 0) == figures["memory"]["peak_blocks"]
        assert page.evaluate(counts, 2) == 0
        tabs.nth(0).focus()
        page.keyboard.press("ArrowRight")
        assert tabs.nth(1).get_attribute("aria-selected") == "true"
        assert page.locator(".moment:visible").count() == 1


def test_table_sorts_by_number_and_search_narrows(chromium, report):
    url, figures = report
    with page_of(chromium, url) as page:
        ready(page)
        table = page.locator("#request-table")
        total = figures["requests"]["submitted"]
        assert table.locator("tbody tr").count() == total
        head = table.get_by_role("button", name="End to end, ms")
        head.click()
        head.click()
        texts = table.locator("tbody tr td:nth-child(7)").all_inner_texts()
        values = [float(t.replace(",", "")) if t != "–" else -1.0 for t in texts]
        assert values == sorted(values, reverse=True)
        assert values[0] == pytest.approx(figures["e2e_ms"]["max"], abs=0.06)
        assert table.locator("th[aria-sort=descending]").count() == 1
        table.locator("input").fill("pool_exceeded")
        rejected = figures["requests"]["rejected"]["pool_exceeded"]
        assert table.locator("tbody tr:visible").count() == rejected
        assert table.locator(".found").inner_text() == f"{rejected} of {total} rows"


def test_paper_is_light_and_has_every_map_and_row(chromium, report):
    url, figures = report
    with page_of(chromium, url, scheme="dark") as page:
        ready(page)
        page.locator("#request-table input").fill("nothing like this")
        page.evaluate(
            "addEventListener('beforeprint', () => { window.printed = document.querySelectorAll('.moment').length; })"
        )
        assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
        assert page.evaluate("window.printed") == 3
        assert not page.evaluate("document.documentElement.hasAttribute('data-print')")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print", color_scheme="dark")
        page.set_viewport_size({"width": 690, "height": 1000})
        assert page.locator(".moment:visible").count() == 3
        assert (
            page.locator("#request-table tbody tr:visible").count()
            == figures["requests"]["submitted"]
        )
        cut = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollHeight > box.clientHeight + 1 || box.scrollWidth > box.clientWidth + 1).length"
        assert page.evaluate(cut) == 0
        assert (
            page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        )
        wide = "[...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 2 && getComputedStyle(e).position !== 'absolute').length"
        assert page.evaluate(wide) == 0


@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures(chromium, report, size, scheme):
    url, _ = report
    with page_of(chromium, url, size, scheme) as page:
        ready(page)
        keep_picture(page, f"report-{size}-{scheme}")
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.evaluate(wide), "the page scrolls sideways"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of the load client with a failure and a prediction laid over it: its page's address, and its figures."""
    folder = tmp_path_factory.mktemp("run")
    app = typer.Typer()
    app.command()(bench)
    page = folder / "run.html"
    trace = str(crowd(folder))
    with running(Stub(ttft_s=0.03, gap_s=0.002)) as url:
        for args in (
            ["--json", str(folder / "before.json")],
            ["--against", str(folder / "before.json"), "--html", str(page)],
        ):
            result = CliRunner().invoke(app, [url, trace, *args, "--time-scale", "0.2"])
            assert result.exit_code == 0, result.output
    return page.as_uri(), json.loads((folder / "run.json").read_text())


def test_run_is_drawn_with_the_prediction_over_it(chromium, run):
    url, figures = run
    with page_of(chromium, url) as page:
        ready(page)
        keep_picture(page, "bench-desktop-light")
        assert page.locator("#latency-charts path.line.second").count() == 3
        assert page.locator("#latency-charts path.line.first").count() == 3
        assert page.locator("#comparison tbody tr").count() == len(figures["against"]["figures"])
        page.locator("#latency-charts").focus()
        page.keyboard.press("ArrowUp")
        assert "other run 50.0 % within" in page.locator("#latency-charts .say").inner_text()
        assert page.locator("#request-table tbody tr").count() == figures["requests"]["submitted"]


def test_plan_is_drawn(chromium, tmp_path):
    trace = write_bursts(tmp_path / "bursts.csv")
    out = tmp_path / "out"
    args = [
        "--slo",
        "ttft_p99=1s,tpot_p99=80ms",
        "--hardware",
        "H100,L4",
        "--quick",
        "--workers",
        "1",
    ]
    app = typer.Typer()
    app.command()(plan)
    assert CliRunner().invoke(app, [str(trace), *args, "--out", str(out)]).exit_code == 0
    with page_of(chromium, (out / "plan.html").as_uri(), "phone", "dark") as page:
        ready(page)
        keep_picture(page, "plan-phone-dark")
        page.locator("#frontier").focus()
        page.keyboard.press("ArrowRight")
        assert " at " in page.locator("#frontier .say").inner_text()
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.evaluate(wide), "the page scrolls sideways"


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    app = typer.Typer()
    app.command()(sweep)
    axes = ["--axis", "block_size=16,32", "--axis", "rate=1,2,4", "--workers", "1"]
    out = ["--set", "num_blocks=40", "--slo", "ttft=1s", "--out", str(folder / "out")]
    assert CliRunner().invoke(app, [str(crowd(folder)), *axes, *out]).exit_code == 0
    return (folder / "out" / "sweep.html").as_uri()


def test_sweep_reads_values_chooses_figures_and_sorts(chromium, swept):
    with page_of(chromium, swept) as page:
        ready(page)
        page.locator("#charts-rate_scale").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        said = page.locator("#charts-rate_scale .say").inner_text()
        assert "block_size 16" in said
        assert said.count(" at 2") >= 4, said
        tabs = page.locator("#heats").get_by_role("tab")
        tabs.nth(1).click()
        assert page.locator("#heats .moment:visible").count() == 1
        assert page.locator("#heats .moment:visible td").count() == 6 + 1
        table = page.locator("#points-table")
        table.get_by_role("button", name="TTFT p99").click()
        assert table.locator("th[aria-sort=ascending]").inner_text().startswith("TTFT p99")
        at = table.locator("th").all_inner_texts().index("TTFT p99") + 1
        shown = table.locator(f"tbody tr td:nth-child({at})").all_inner_texts()
        assert {text.split()[1] for text in shown} == {"ms", "s"}, "the units differ"
        sizes = {"ms": 1.0, "s": 1000.0}
        times = [float(text.split()[0]) * sizes[text.split()[1]] for text in shown]
        assert times == sorted(times)
        panels = tabs.count()
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        assert page.locator("#heats .moment:visible").count() == panels


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_sweep_fits_the_screen(chromium, swept, size):
    with page_of(chromium, swept, size, "dark") as page:
        ready(page)
        keep_picture(page, f"sweep-{size}-dark")
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.evaluate(wide), "the page scrolls sideways"
