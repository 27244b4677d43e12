"""What the engine does is shown as it happens: each kind of change is asked for, drawn, and only state under `prefers-reduced-motion`."""

import time

import pytest

from tests.e2e.browser import keep_picture, needs_browser, page_of, until
from tests.e2e.load import slow, streaming
from tests.gateway.live import live, scripted

pytestmark = needs_browser
MAP = "document.querySelector('#map').view"
ASKED = f"{MAP}.motion.asked"
PROMPTS = ["page " * (5 + 2 * i) + str(i) for i in range(5)]


def pool(num_blocks: int, host_blocks: int):
    return scripted(
        num_blocks=num_blocks,
        max_context=160,
        pace=slow,
        host_blocks=host_blocks,
        move_pace=lambda out: time.sleep(0.15),
    )


@pytest.mark.parametrize(
    ("num_blocks", "host_blocks", "kinds"),
    [(72, 120, ["out", "in"]), (72, 0, ["drop", "evict"]), (400, 0, ["copy", "flash"])],
)
def test_changes_are_shown_as_they_happen(
    chromium, num_blocks: int, host_blocks: int, kinds: list[str]
) -> None:
    with (
        live(pool(num_blocks, host_blocks)) as client,
        page_of(chromium, str(client.base_url)) as page,
        streaming(client, PROMPTS, again=True, max_tokens=90),
        streaming(client, ["one and three answers"], again=True, max_tokens=12, n=3),
    ):
        for kind in kinds:
            until(page, f"{MAP}.motion.kinds.includes('{kind}')")
            page.wait_for_timeout(100)
            keep_picture(page, f"motion-{kind}")
            assert page.evaluate(f"{ASKED}.{kind}") > 0
        if host_blocks:
            assert page.locator(".km-host").is_visible()
            until(page, "document.querySelector('.km-host i').style.height !== '0%'")


def test_reduced_motion_shows_state_only(chromium) -> None:
    with (
        live(pool(72, 120)) as client,
        page_of(chromium, str(client.base_url), reduced_motion="reduce") as page,
        streaming(client, PROMPTS, again=True, max_tokens=90),
    ):
        page.locator("#events").get_by_text("preempted request").first.wait_for()
        until(page, f"{MAP}.counts[4] > 0")
        assert set(page.evaluate(f"Object.values({ASKED})")) == {0}


def test_effect_ends_and_leaves_nothing_on_the_sheet(chromium) -> None:
    with live(scripted()) as client, page_of(chromium, str(client.base_url)) as page:
        page.get_by_text("serving").wait_for()
        page.evaluate(f"{MAP}.apply({{ runs: [0, 4, 2, 1, 7, 0, 0], events: [['copy', 0, 90]] }})")
        assert page.evaluate(f"[{ASKED}.flash, {ASKED}.copy]") == [4, 1]
        until(page, f"{MAP}.motion.kinds.length === 0 && !{MAP}.pending")
        drawn = f"{MAP}.o.getImageData(0, 0, {MAP}.over.width, {MAP}.over.height).data"
        assert page.evaluate(f"{drawn}.every((value) => value === 0)")
