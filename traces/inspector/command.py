"""`kilburn inspect`: flags to settings. Heavy imports wait until it runs."""

from pathlib import Path
from typing import Annotated

import typer

from traces.given import Given
from traces.report import numbers


def inspect(
    context: typer.Context,
    recording: Annotated[
        Path,
        typer.Argument(
            metavar="RECORDING",
            help="A file by `kilburn serve --record` or `kilburn replay --record`; plain or gzip.",
            show_default=False,
        ),
    ],
    *,
    html: Annotated[
        Path | None,
        typer.Option(help="Write one page that needs no server to FILE, and stop.", metavar="FILE"),
    ] = None,
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 0,
    partial: Annotated[
        bool, typer.Option("--partial", help="Show what is there of a file that was cut short.")
    ] = False,
) -> None:
    """Step through a recording: its block map at any step, and why each request was preempted."""
    from rich.console import Console

    from traces.inspector.moments import Walk, look
    from traces.inspector.pack import build_page
    from traces.inspector.serve import serve_document
    from traces.outputs import check_outputs
    from traces.report.tables import write_text
    from traces.terminal import exit_on_error, step_progress

    console = Console(highlight=False, markup=False, soft_wrap=True)
    with exit_on_error():
        if html is not None:
            Given(context).refuse("port", why="beside --html, which serves nothing")
        check_outputs(html, sources=(recording,))
        found = look(recording, partial=partial)
        walk = Walk(recording, found)
        with step_progress(found.num_steps, "replaying") as watch:
            page = build_page(recording, found, walk, walk.moments(watch))
        size = f"{len(page.encode()) / 1e6:,.1f} MB"
        told = f"{numbers.counted(found.num_steps, 'step')} and {numbers.counted(len(walk.stories.of), 'request')}, {size}"
        if html is not None:
            write_text(page, html)
            console.print(f"{html}: {told}")
            return
        try:
            serve_document(
                page.encode(),
                port,
                lambda url: console.print(
                    f"{recording.name}: {told}; look at {url}, stop with Ctrl-C"
                ),
            )
        except KeyboardInterrupt:
            return
