"""A line of progress of a plan, on stderr: gone at the end where that is a terminal, else one now and then."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sim.plan.desk import Standing
from sim.progress import seldom
from traces.report import numbers


@contextmanager
def line() -> Iterator[Callable[[Standing], None]]:
    """What is to be told of progress."""
    if not sys.stderr.isatty():
        tell = seldom()
        yield lambda standing: tell(_words(standing))
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("planning", total=None)

        yield lambda standing: shown.update(task, description=_words(standing))


def _words(standing: Standing) -> str:
    cached = f", {standing.cached:,} of them cached" if standing.cached else ""
    now = f", now {standing.label}" if standing.label else ""
    return f"planning: {numbers.counted(standing.done, 'simulation')} done{cached}, {standing.running:,} asked for{now}"
