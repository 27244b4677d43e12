"""The progress bar of a sweep, on stderr, where that is a terminal; gone at the end."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from sim.sweep.runner import Progress


@contextmanager
def bar() -> Iterator[Callable[[Progress], None] | None]:
    """What is to be told of progress; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("sweeping"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=None)

        def watch(progress: Progress) -> None:
            notes = []
            if progress.cached:
                notes.append(f"{progress.cached:,} cached")
            if progress.failed:
                notes.append(f"{progress.failed:,} failed")
            shown.update(
                task,
                total=progress.total,
                completed=progress.done,
                description=", ".join(notes),
            )

        yield watch
