"""One browser a module: its driver keeps an event loop in this thread, which must be gone before tests that run one of their own."""

import pytest

from tests.e2e.browser import browser


@pytest.fixture(scope="module")
def chromium():
    with browser() as running:
        yield running
