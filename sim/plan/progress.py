"""A line of progress of a plan, on stderr, where that is a terminal; gone at the end."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sim.plan.desk import Standing


@contextmanager
def line() -> Iterator[Callable[[Standing], None] | None]:
    """What is to be told of progress; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("planning", total=None)

        def watch(standing: Standing) -> None:
            cached = f", {standing.cached:,} of them cached" if standing.cached else ""
            shown.update(
                task,
                description=f"planning: {standing.done:,} simulations done{cached}, {standing.running:,} asked for, now {standing.label}",
            )

        yield watch
