"""One browser for the whole run."""

import pytest

from tests.e2e.browser import browser


@pytest.fixture(scope="session")
def chromium():
    with browser() as running:
        yield running
