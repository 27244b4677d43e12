"""The live page in a real browser: it loads, shows the pool as it changes, streams a chat, cancels, asks for a key, and says when it is alone."""

from contextlib import ExitStack
from typing import Any

import pytest

from gateway.engine import Served
from gateway.tenants import load_tenants
from tests.e2e.browser import keep_picture, needs_browser, page_of, until
from tests.e2e.load import streaming
from tests.engine.gate import Gate
from tests.gateway.live import live, scripted, wait_until_free
from tests.gateway.standstill import BEGUN_STEPS, StandStill

pytestmark = needs_browser
STEP_S = 0.02
MAP = "document.querySelector('#map').view"


def standing_still(begun_steps: int = BEGUN_STEPS, **settings: Any) -> tuple[Served, StandStill]:
    """A model whose answers, once they have begun, are under way for as long as the page may need to show it."""
    pace = StandStill(STEP_S, begun_steps)
    served = scripted(pace=pace, **settings)
    pace.attend(served.engine)
    return served, pace


def map_state(page) -> list[int]:
    """Frames by state: free, cached, held, shared, moving. What the legend counts must be what the map holds."""
    states = page.evaluate(
        f"[0, 1, 2, 3, 4].map((state) => {MAP}.state.filter((each) => each === state).length)"
    )
    assert states == page.evaluate(f"{MAP}.counts")
    return states


def test_page_loads_and_shows_an_empty_pool(chromium) -> None:
    with live(scripted([b"a"])) as client, page_of(chromium, str(client.base_url)) as page:
        page.get_by_text("scripted · 128 blocks of 4 tokens").wait_for()
        page.get_by_text("0 tok/s · 0 running · 0 waiting").wait_for()
        assert map_state(page) == [128, 0, 0, 0, 0]
        assert page.locator("#list tr").count() == 0
        page.get_by_text("No request is open.").wait_for()
        assert page.locator(".km-story").inner_text().startswith("Point at a frame")
        assert page.title() == "Kilburn · scripted"
        keep_picture(page, "live-empty")


def test_chat_streams_and_the_map_fills_and_empties(chromium) -> None:
    pieces, gate = [f"word{i} ".encode() for i in range(60)], Gate()
    gate.let_go(30)
    with (
        live(scripted(pieces, pace=gate)) as client,
        page_of(chromium, str(client.base_url)) as page,
    ):
        page.get_by_text("serving").wait_for()
        page.locator("#question").fill("What is a page frame?")
        page.keyboard.press("Enter")
        page.locator("#talk").get_by_text("word1 ").wait_for()
        until(page, f"{MAP}.counts[2] > 10")
        assert "word59" not in page.locator("#talk").inner_text()
        gate.open()
        page.locator("#talk").get_by_text("word59").wait_for()
        until(page, f"{MAP}.counts[2] === 0")
        until(page, "document.querySelector('#stop').disabled")
        assert not page.locator("#send").is_disabled()
        wait_until_free(client)
        assert sum(map_state(page)) == 128


def test_what_is_typed_beside_the_message_is_sent_within_its_bounds(chromium) -> None:
    typed = [
        ({}, (1, 256, 0.2)),
        ({"choices": "99", "most": "7.6", "temperature": "0"}, (16, 8, 0)),
        ({"choices": "2", "most": "40", "temperature": "0.25"}, (2, 40, 0.25)),
        ({"choices": "1", "most": "", "temperature": "3"}, (1, 256, 2)),
    ]
    with live(scripted([b"a"])) as client, page_of(chromium, str(client.base_url)) as page:
        page.get_by_text("serving").wait_for()
        for fields, expected in typed:
            for name, value in fields.items():
                page.locator(f"#{name}").fill(value)
            page.locator("#question").fill("?")
            with page.expect_request("**/v1/chat/completions") as sent:
                page.locator("#send").click()
            body = sent.value.post_data_json
            assert (body["n"], body["max_tokens"], body["temperature"]) == expected
            until(page, "document.querySelector('#stop').disabled")


def test_several_answers_share_the_prompt_and_stand_side_by_side(chromium) -> None:
    gate = Gate()
    gate.let_go(20)
    with (
        live(scripted(pace=gate)) as client,
        page_of(chromium, str(client.base_url)) as page,
    ):
        page.get_by_text("serving").wait_for()
        page.locator("#choices").fill("3")
        page.locator("#most").fill("40")
        page.locator("#question").fill("What is shared?")
        page.locator("#send").click()
        until(page, f"{MAP}.counts[3] > 5")
        gate.open()
        until(page, f"{MAP}.motion.asked.copy >= 2")
        page.locator("#events").get_by_text("copy-on-write: frame").first.wait_for()
        until(page, "document.querySelector('#stop').disabled")
        answers = page.locator("#talk .answers p").all_inner_texts()
        assert [text.split("\n")[0] for text in answers] == ["answer 1", "answer 2", "answer 3"]
        assert len(set(answers)) == 3
        wait_until_free(client)


def test_stop_ends_the_chat_and_says_so(chromium) -> None:
    gate = Gate()
    gate.let_go(20)
    with (
        live(scripted(pace=gate)) as client,
        page_of(chromium, str(client.base_url)) as page,
    ):
        page.locator("#question").fill("Go on")
        page.locator("#send").click()
        until(page, f"{MAP}.counts[2] > 3")
        page.locator("#stop").click()
        page.locator("#talk").get_by_text("(stopped)").wait_for()
        gate.open()
        wait_until_free(client)


def test_cancel_ends_the_request_and_frees_its_frames(chromium) -> None:
    served, pace = standing_still()
    with (
        live(served) as client,
        page_of(chromium, str(client.base_url)) as page,
        streaming(client, ["one", "two"]) as ends,
    ):
        until(page, "document.querySelectorAll('#list tr.request').length === 2")
        page.get_by_role("button", name="Cancel request").first.click()
        until(page, "document.querySelectorAll('#list tr.request').length === 1")
        assert ends.get(timeout=60) == 200
        assert ends.empty()
        pace.open()


def test_frames_can_be_walked_and_pinned_by_keyboard(chromium) -> None:
    served, pace = standing_still()
    with (
        live(served) as client,
        page_of(chromium, str(client.base_url)) as page,
        streaming(client, ["x" * 40], max_tokens=400),
    ):
        until(page, f"{MAP}.counts[2] > 10")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "km-map"
        story, said = page.locator(".km-story"), page.locator(".km-said")
        assert story.inner_text().startswith("Frame 0 is held: request ")
        assert "positions 0 to 3; 1 reference" in story.inner_text()
        page.keyboard.press("ArrowRight")
        assert "positions 4 to 7" in story.inner_text()
        assert said.inner_text() == story.inner_text()
        page.keyboard.press("Enter")
        assert said.inner_text().startswith("Frame 1 is held (pinned)")
        page.keyboard.press("End")
        assert story.inner_text().startswith("Frame 1 is held (pinned)")
        until(page, "document.querySelectorAll('#list tr.marked').length === 1")
        page.keyboard.press("Escape")
        assert story.inner_text() == "Frame 127 is free."
        page.keyboard.press("PageUp")
        assert story.inner_text().startswith("Frame ")
        assert "held: request" in story.inner_text()
        until(page, f"{MAP}.pinned === -1")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        pace.open()


def test_pointer_in_one_chart_shows_the_same_moment_in_all(chromium) -> None:
    served, pace = standing_still()
    strips = "document.querySelector('#strips').view"
    with (
        live(served) as client,
        page_of(chromium, str(client.base_url)) as page,
        ExitStack() as at_end,
    ):
        until(page, f"{strips}.samples.length > 3")
        at_end.enter_context(streaming(client, ["x" * 40], max_tokens=400))
        at_end.callback(pace.open)
        until(page, f"{strips}.samples.at(-1).running")
        page.locator("#strips").focus()
        page.keyboard.press("Home")
        values = page.locator("#strips .km-values").all_inner_texts()
        assert "0 running" in values[1]
        assert values[2] == "0 tok/s"
        page.locator(".km-axis").get_by_text("shown: ").wait_for()
        assert "0 running" in page.locator("#strips").get_attribute("aria-valuetext")
        page.keyboard.press("Escape")
        assert "1 running" in page.locator("#strips .km-values").all_inner_texts()[1]
        canvas = page.locator("#strips canvas").nth(3)
        canvas.hover(position={"x": 2, "y": 20})
        assert "0 running" in page.locator("#strips .km-values").all_inner_texts()[1]


def test_lost_server_is_said_with_its_time(chromium) -> None:
    with live(scripted([b"a"])) as client:
        context = chromium.new_context()
        page = context.new_page()
        page.goto(str(client.base_url))
        page.get_by_text("serving").wait_for()
    page.get_by_text("no connection since").wait_for(timeout=60_000)
    keep_picture(page, "live-lost")
    context.close()


def test_refused_viewer_is_told_why(chromium) -> None:
    with (
        live(scripted([b"a"]), max_viewers=1) as client,
        page_of(chromium, str(client.base_url)) as first,
    ):
        first.get_by_text("serving").wait_for()
        with page_of(chromium, str(client.base_url), expected="429") as second:
            second.get_by_text("as this server feeds at once: 1; trying again").wait_for()
            keep_picture(second, "live-refused")


def test_key_is_asked_for_kept_and_sent(chromium) -> None:
    served = scripted([b"hello"], tenants=load_tenants(None, "alice:open-sesame"))
    with (
        live(served) as client,
        page_of(chromium, str(client.base_url), expected="401") as page,
    ):
        page.get_by_text("an API key is needed").wait_for()
        keep_picture(page, "live-key")
        field, note = (
            page.get_by_label("This server asks for an API key."),
            page.locator("#key-note"),
        )
        field.fill("clé")
        page.keyboard.press("Enter")
        note.get_by_text("A key holds letters, digits and signs of ASCII only.").wait_for()
        field.fill("open-barley")
        page.keyboard.press("Enter")
        note.get_by_text("The key was not accepted.").wait_for()
        field.fill("open-sesame")
        page.keyboard.press("Enter")
        page.get_by_text("serving").wait_for()
        assert not page.locator("#key").is_visible()
        page.locator("#question").fill("Hi")
        page.keyboard.press("Enter")
        page.locator("#talk").get_by_text("hello").wait_for()
        page.reload()
        page.get_by_text("serving").wait_for()
        assert page.evaluate("sessionStorage.length + localStorage.length") == 1


@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_of_a_busy_pool(chromium, size: str, scheme: str) -> None:
    served, pace = standing_still(begun_steps=60, num_blocks=420)
    prompts = ["page " * (3 + 4 * i) for i in range(9)]
    with (
        live(served) as client,
        page_of(chromium, str(client.base_url), size, scheme) as page,
        streaming(client, prompts),
    ):
        until(page, "document.querySelectorAll('#list tr.request').length === 9")
        page.locator("#question").fill("How full is it?")
        page.locator("#send").click()
        page.wait_for_timeout(600)
        page.locator(".km-map").hover(position={"x": 40, "y": 30})
        keep_picture(page, f"live-{size}-{scheme}")
        wide = page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
        assert not wide, "the page scrolls sideways"
        names = page.evaluate("""[...document.querySelectorAll("button, input, textarea, [tabindex]")]
            .filter((each) => !(each.textContent.trim() || each.labels?.length || each.ariaLabel))
            .map((each) => each.outerHTML)""")
        assert names == [], "something that can be pressed has no name"
        pace.open()
