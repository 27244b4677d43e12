"""The command line. Each command is defined beside what it runs; none is imported before its turn."""

import sys
from typing import Annotated

import typer

from gateway.cli import key, serve
from sim.cli import replay
from sim.plan.cli import plan
from sim.sweep.cli import sweep
from traces.cli import app as trace
from traces.client.cli import bench
from traces.inspector.command import inspect

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A streaming LLM gateway that manages the KV cache as virtual memory, and a twin that predicts it.",
)


def _tell_version(asked: bool) -> None:
    if asked:
        from gateway.feed import own_version

        typer.echo(f"kilburn {own_version()}")
        raise typer.Exit


@app.callback()
def kilburn(
    _: Annotated[
        bool,
        typer.Option(
            "--version", help="Tell the version and stop.", callback=_tell_version, is_eager=True
        ),
    ] = False,
) -> None:
    """What all commands share."""


app.command()(serve)
app.command()(key)
app.command()(replay)
app.command()(bench)
app.command()(sweep)
app.command()(plan)
app.command()(inspect)
app.add_typer(trace, name="trace")


@app.command()
def pull() -> None:
    """Fetch the default model and convert it, so that `serve` starts at once."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from engine.weights.pull import pull_default
    from traces.terminal import exit_on_error

    console = Console(highlight=False, markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with exit_on_error(), Progress(*columns, console=console, transient=True) as progress:
        path = pull_default(progress)
    console.print(f"{path.stem} is ready: {path}", soft_wrap=True)


def main() -> None:
    """Runs the program; what no command foresees is a fault of ours, and exit code 3."""
    try:
        app()
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(3)


if __name__ == "__main__":
    main()
