"""The live page in a real browser: it loads, shows the pool as it changes, streams a chat, cancels a request, and says when it is alone."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.e2e.browser import browser, keep_picture, needs_browser, page_of, until
from tests.gateway.live import live, scripted, wait_until_free

pytestmark = needs_browser
LONG = {"max_tokens": 200, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def chromium():
    with browser() as running:
        yield running


@contextmanager
def streaming(client: httpx.Client, prompts: list[str]) -> Iterator[list[int]]:
    """Requests that are read in the background until they end or the block does; statuses of those that ended."""
    ends: list[int] = []
    leave = threading.Event()

    def read(prompt: str) -> None:
        with httpx.stream(
            "POST",
            str(client.base_url.join("/v1/completions")),
            json=LONG | {"prompt": prompt},
            timeout=30,
        ) as response:
            for _ in response.iter_bytes():
                if leave.is_set():
                    return
            ends.append(response.status_code)

    threads = [threading.Thread(target=read, args=[prompt]) for prompt in prompts]
    for thread in threads:
        thread.start()
    try:
        yield ends
    finally:
        leave.set()
        for thread in threads:
            thread.join(20)


def slow(plan: object) -> None:
    time.sleep(0.02)


def map_state(page) -> list[int]:
    """Frames by state, as the page's own map counts them: free, cached, held, shared, moving."""
    return page.evaluate(
        "[0, 1, 2, 3, 4].map((state) => document.querySelector('#map').view.count(state))"
    )


def test_page_loads_and_shows_an_empty_pool(chromium) -> None:
    with live(scripted([b"a"])) as client, page_of(chromium, str(client.base_url)) as page:
        page.get_by_text("scripted · 128 blocks of 4").wait_for()
        page.get_by_text("serving · 0 tok/s · 0 running · 0 waiting").wait_for()
        assert map_state(page) == [128, 0, 0, 0, 0]
        assert page.locator("#list").inner_text() == "No request is open."


def test_chat_streams_and_the_map_fills_and_empties(chromium) -> None:
    pieces = [f"word{i} ".encode() for i in range(60)]
    with (
        live(scripted(pieces, pace=slow)) as client,
        page_of(chromium, str(client.base_url)) as page,
    ):
        page.get_by_text("serving").wait_for()
        page.locator("#question").fill("What is a page frame?")
        page.keyboard.press("Enter")
        page.locator("#talk").get_by_text("word1 ").wait_for()
        partial = page.locator("#talk").inner_text()
        assert "word59" not in partial
        until(page, "document.querySelector('#map').view.count(2) > 10")
        page.locator("#talk").get_by_text("word59").wait_for()
        until(page, "document.querySelector('#map').view.count(2) === 0")
        assert page.locator("#stop").is_disabled()
        assert not page.locator("#send").is_disabled()
        wait_until_free(client)


def test_cancel_ends_the_request_and_frees_its_frames(chromium) -> None:
    with (
        live(scripted(pace=slow)) as client,
        page_of(chromium, str(client.base_url)) as page,
        streaming(client, ["one", "two"]) as ends,
    ):
        until(page, "document.querySelectorAll('#list li.request').length === 2")
        page.get_by_role("button", name="Cancel request").first.click()
        until(page, "document.querySelectorAll('#list li.request').length === 1")
        assert ends == [200]


def test_frames_can_be_walked_and_pinned_by_keyboard(chromium) -> None:
    with (
        live(scripted(pace=slow)) as client,
        page_of(chromium, str(client.base_url)) as page,
        streaming(client, ["x" * 40]),
    ):
        until(page, "document.querySelector('#map').view.count(2) > 10")
        page.locator(".km-map").focus()
        story = page.locator(".km-story")
        assert story.inner_text().startswith("Frame 0 is held: request ")
        assert "positions 0 to 3; 1 reference" in story.inner_text()
        page.keyboard.press("ArrowRight")
        assert "positions 4 to 7" in story.inner_text()
        page.keyboard.press("Enter")
        assert story.inner_text().startswith("Frame 1 is held (pinned)")
        page.keyboard.press("End")
        assert story.inner_text().startswith("Frame 1 is held (pinned)")
        until(page, "document.querySelectorAll('#list li.marked').length === 1")
        page.keyboard.press("Escape")
        assert story.inner_text() == "Frame 127 is free."


def test_lost_server_is_said_with_its_time(chromium) -> None:
    with live(scripted([b"a"])) as client:
        context = chromium.new_context()
        page = context.new_page()
        page.goto(str(client.base_url))
        page.get_by_text("serving").wait_for()
    page.get_by_text("no connection since").wait_for(timeout=15_000)
    keep_picture(page, "live-lost")
    context.close()


@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_of_a_busy_pool(chromium, size: str, scheme: str) -> None:
    served = scripted(num_blocks=420, max_context=512, pace=slow)
    prompts = ["page " * (3 + 4 * i) for i in range(9)]
    with (
        live(served) as client,
        page_of(chromium, str(client.base_url), size, scheme) as page,
        streaming(client, prompts),
    ):
        until(page, "document.querySelectorAll('#list li.request').length === 9")
        page.locator("#question").fill("How full is it?")
        page.locator("#send").click()
        page.wait_for_timeout(1_200)
        page.locator(".km-map").hover(position={"x": 40, "y": 30})
        keep_picture(page, f"live-{size}-{scheme}")
        wide = page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
        assert not wide, "the page scrolls sideways"
