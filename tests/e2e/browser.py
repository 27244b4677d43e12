"""The system's Chromium, driven by Playwright: a page that fails its test if the console ever says an error."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)  # fmt: skip
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
BUILD = Path(__file__).resolve().parents[2] / "build"
SIZES = {"desktop": (1440, 900), "phone": (390, 844)}

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@contextmanager
def browser() -> Iterator["object"]:
    """A running browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def page_of(
    chromium,
    url: str,
    size: str = "desktop",
    scheme: str = "light",
    expected: str | None = None,
    **options,
):
    """A page that has loaded `url`; at its end it may have asked nobody else for anything, and the console heard no error.

    `expected` errors, by a part of their text, are let pass.
    """
    width, height = SIZES[size]
    context = chromium.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, **options
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    errors: list[str] = []
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    try:
        yield page
        assert [said for said in errors if expected is None or expected not in said] == []
        home = urlsplit(page.url)[:2]
        assert [to for to in asked if urlsplit(to)[:2] != home and not to.startswith("data:")] == []
    finally:
        context.close()


def keep_picture(page, name: str) -> None:
    """Keeps what the page looks like under `build/`."""
    BUILD.mkdir(exist_ok=True)
    page.screenshot(path=BUILD / f"{name}.png", full_page=True)


def until(page, condition: str) -> None:
    """Asks the page until `condition`, an expression, holds. The page's content policy forbids Playwright's own way of waiting.

    Raises:
        AssertionError: it did not within a minute.
    """
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {condition}")
