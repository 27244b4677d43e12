"""What commands share at the terminal: errors as one sentence with an exit code, and a line of progress. Knows no command.

Exit codes: 2, a setting, a file or (under --strict) a row is wrong; 3, a fault of ours.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import typer
from rich.console import Console
from rich.live import Live
from rich.progress import Progress
from rich.text import Text

from engine.core.errors import ExecutorError, InvariantError, ServeError
from traces.report import numbers
from traces.schema import TraceRequest

REDRAW_S: Final = 0.1


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turns an error of ours into `error: sentence` on stderr and an exit code."""
    try:
        yield
    except ServeError as error:
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        console.print(Text.assemble(("error: ", "bold red"), error.message))
        raise typer.Exit(3 if isinstance(error, ExecutorError | InvariantError) else 2) from None


def with_progress(requests: Iterable[TraceRequest], verb: str) -> Iterator[TraceRequest]:
    """The same requests, with a line on stderr that counts them, where that is a terminal; gone at the end."""
    if not sys.stderr.isatty():
        yield from requests
        return
    started = drawn = time.perf_counter()
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        for count, row in enumerate(requests, start=1):
            now = time.perf_counter()
            if now - drawn >= REDRAW_S:
                drawn = now
                rate = count / (now - started)
                text = f"{verb} {numbers.counted(count, 'request')}, up to {row.arrival_ns / 1e9:,.0f} s; {rate:,.0f} requests/s"
                live.update(Text(text), refresh=True)
            yield row


@contextmanager
def step_progress(total: int, verb: str) -> Iterator[Callable[[int], None]]:
    """What to call with each step, for a bar on stderr where that is a terminal; gone at the end."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    drawn = time.perf_counter()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=total)

        def watch(step: int) -> None:
            nonlocal drawn
            now = time.perf_counter()
            if now - drawn >= REDRAW_S:
                drawn = now
                bar.update(task, completed=step)

        yield watch
