"""A line on stderr that says how a run goes, where that is a terminal; gone at the end."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from traces.client.bench import Watch
from traces.client.drive import Driver


@contextmanager
def progress() -> Iterator[Watch | None]:
    """What to tell of a run under way; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:

        def watch(driver: Driver) -> None:
            outcomes = driver.outcomes
            failed = len(outcomes.why)
            done = len(outcomes) - driver.num_open - failed
            text = (
                f"{driver.now() / 1e9:,.0f} s: {len(outcomes):,} sent, {driver.num_open:,} open, {done:,} done, {failed:,} failed; "
                f"{outcomes.num_events:,} text events; Ctrl-C ends it with a report"
            )
            live.update(Text(text), refresh=True)

        yield watch
