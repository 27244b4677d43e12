"""`kilburn inspect` in a real browser: any moment, forwards and back, a request's story, by file and by server; and its errors."""

import gzip
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import httpx
import pytest
from typer.testing import CliRunner

from kilburn import app
from tests.e2e.browser import keep_picture, needs_browser, page_of, until
from tests.sim.report.crowd import FLAGS, crowd
from tests.sim.test_lockstep import record_crowd

MAP = "document.querySelector('#map').view"
WHY = r"Preempted: (it|request \d+) needed one more block, and none of the 48 .*gave way.*By swap"
COLUMNS = f"[...{MAP}.state, ...{MAP}.request, ...{MAP}.column]"


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "run.jsonl.gz"

    async def record() -> None:
        await record_crowd(path, clients=60, faults=True, virtual=True, num_blocks=48)

    with ThreadPoolExecutor(1) as thread:  # the browser's driver has a loop in this one
        thread.submit(anyio.run, record).result()
    return path


@pytest.fixture(scope="module")
def document(recording) -> str:
    out = recording.with_suffix(".html")
    result = CliRunner().invoke(app, ["inspect", str(recording), "--html", str(out)])
    assert result.exit_code == 0, result.output
    assert re.search(r"[\d,]+ steps and 60 requests, \d+\.\d MB", result.output)
    return out.as_uri()


def ready(page) -> None:
    until(page, "document.body.dataset.ready === ''")


def at(page, step: int) -> None:
    """Waits until the map shows `step`; the box for its number may hold what was typed just now."""
    until(page, f"document.querySelector('#where').textContent.startsWith('step {step} of ')")


@needs_browser
def test_any_way_to_a_moment_shows_the_same_map(chromium, document) -> None:
    with page_of(chromium, document) as page:
        ready(page)
        page.locator("#step").fill("70")
        page.keyboard.press("Enter")
        at(page, 70)
        there = page.evaluate(COLUMNS)
        page.locator("#next").click()
        at(page, 71)
        page.locator("#back").click()
        at(page, 70)
        assert page.evaluate(COLUMNS) == there
        page.locator("#map .km-map").focus()
        page.keyboard.press(",")
        at(page, 69)
        page.keyboard.press(".")
        at(page, 70)
        assert page.evaluate(COLUMNS) == there
        page.goto(f"{document}#step=70")
        page.reload()
        ready(page)
        assert page.evaluate(COLUMNS) == there
        page.locator("#slider").evaluate(
            "each => { each.value = each.max; each.dispatchEvent(new Event('input')); }"
        )
        page.get_by_text("the end").first.wait_for()
        assert page.locator("#next").is_disabled()
        assert set(page.evaluate(f"[...{MAP}.request]")) == {-1}


@needs_browser
def test_preempted_request_tells_why(chromium, document) -> None:
    with page_of(chromium, document) as page:
        ready(page)
        page.locator("#filter").select_option("preempted")
        first = page.locator("#list button").first
        name = first.inner_text()
        first.click()
        page.locator("#story-title").get_by_text(f"Story of request {name}").wait_for()
        why = page.locator("#lines .warm").first
        assert re.match(WHY, why.inner_text())
        line = page.locator("#lines li", has=page.locator(".warm")).first
        line.get_by_role("button").click()
        until(page, "document.querySelector('#lines .here .warm') !== null")
        assert f"Request {name}: preempted by swap" in page.locator("#notes").inner_text()
        assert f"request={name}" in page.url
        page.keyboard.press("p")
        until(page, "document.querySelector('#notes .warm') !== null")
        page.locator("#search").fill(name)
        assert page.locator("#list button").first.inner_text() == name
        page.locator("#search").fill("999")
        page.get_by_text("No request begins with 999.").wait_for()


@needs_browser
def test_a_simulated_run_tells_why_as_a_live_one_does(chromium, tmp_path) -> None:
    path = tmp_path / "twin.jsonl.gz"
    swap = ["--preemption", "swap", "--host-gb", "1"]
    flags = [*FLAGS, *swap, "--record", str(path)]
    assert CliRunner().invoke(app, ["replay", str(crowd(tmp_path)), *flags]).exit_code == 0
    out = tmp_path / "twin.html"
    assert CliRunner().invoke(app, ["inspect", str(path), "--html", str(out)]).exit_code == 0
    with page_of(chromium, out.as_uri()) as page:
        ready(page)
        keep_picture(page, "inspect-simulated")
        assert "Llama-3.1-8B, simulated on A100-80" in page.locator("#what").inner_text()
        page.locator("#filter").select_option("preempted")
        page.locator("#list button").first.click()
        why = page.locator("#lines .warm").first.inner_text()
        assert re.match(WHY.replace("48", "40"), why), why
        page.keyboard.press("p")
        until(page, "document.querySelector('#notes .warm') !== null")


@needs_browser
def test_play_goes_on_by_itself_and_shows_changes(chromium, document) -> None:
    with page_of(chromium, document) as page:
        ready(page)
        page.locator("#play").click()
        until(page, "Number(document.querySelector('#step').value) > 3")
        assert page.evaluate(f"{MAP}.motion.asked.flash") > 0
        page.locator("#speed").select_option("1000")
        until(page, "document.querySelector('#next').disabled")
        until(page, "document.querySelector('#play').textContent === 'Play'")


@needs_browser
def test_pinned_frame_brings_the_story_of_its_owner(chromium, document) -> None:
    with page_of(chromium, f"{document}#step=60") as page:
        ready(page)
        frame = page.evaluate(f"{MAP}.request.findIndex((owner) => owner >= 0)")
        owner = page.evaluate(f"{MAP}.request[{frame}]")
        x, y = page.evaluate(f"{MAP}.place({frame})")
        page.locator(".km-map").click(position={"x": x + 3, "y": y + 3})
        page.locator("#story-title").get_by_text(f"Story of request {owner}:").wait_for()
        page.locator("#strips").click(position={"x": 10, "y": 60})
        until(page, "Number(document.querySelector('#step').value) < 30")


@needs_browser
@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures(chromium, document, size: str, scheme: str) -> None:
    with page_of(chromium, f"{document}#step=90", size, scheme) as page:
        ready(page)
        page.locator("#filter").select_option("preempted")
        page.locator("#list button").first.click()
        page.locator("#lines .warm").first.wait_for()
        keep_picture(page, f"inspect-{size}-{scheme}")
        wide = page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
        assert not wide, "the page scrolls sideways"


def test_server_says_where_it_is_and_ends_quietly(recording) -> None:
    command = [sys.executable, "-m", "kilburn", "inspect", str(recording)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    ) as process:
        try:
            said = process.stdout.readline()
            url = re.search(r"http://127\.0\.0\.1:\d+/", said)[0]
            assert "<title>run.jsonl.gz · Kilburn</title>" in httpx.get(url, timeout=60).text
            assert httpx.get(f"{url}other", timeout=60).status_code == 404
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.replace(b'"version":3', b'"version":2', 1), "has version 2; this"),
        (lambda data: data[: len(data) // 2], "--partial shows what is there"),
        (lambda data: b"a,b\n1,2\n", "this is no recording by `kilburn serve --record`"),
        (None, "cannot be read: No such file"),
    ],
)
def test_bad_files_are_told_in_one_sentence(recording, tmp_path, change, message: str) -> None:
    bad = tmp_path / "bad.jsonl"
    if change is not None:
        bad.write_bytes(change(gzip.decompress(recording.read_bytes())))
    out = tmp_path / "out.html"
    result = CliRunner().invoke(app, ["inspect", str(bad), "--html", str(out)])
    assert result.exit_code == 2
    assert message in result.output
    assert result.output.count("error: ") == 1
    assert not out.exists()
