"""The progress of a sweep, on stderr: a bar, gone at the end, where that is a terminal; else a line now and then."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from sim.progress import seldom
from sim.sweep.runner import Progress
from traces.report import numbers


@contextmanager
def bar() -> Iterator[Callable[[Progress], None]]:
    """What is to be told of progress."""
    if not sys.stderr.isatty():
        tell = seldom()
        yield lambda progress: tell(
            ", ".join(
                [
                    f"sweeping: {progress.done:,} of {numbers.counted(progress.total, 'point')}",
                    *_notes(progress),
                ]
            )
        )
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
            shown.update(
                task,
                total=progress.total,
                completed=progress.done,
                description=", ".join(_notes(progress)),
            )

        yield watch


def _notes(progress: Progress) -> list[str]:
    notes = []
    if progress.cached:
        notes.append(f"{progress.cached:,} cached")
    if progress.failed:
        notes.append(f"{progress.failed:,} failed")
    return notes
