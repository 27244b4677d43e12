"""`kilburn trace stats | convert | synth`: flags to settings, and the summary. Heavy imports wait until a command runs."""

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import asdict

from traces.flags import FiguresPath, Limit, ShapingFlags, Strict, TracePath
from traces.given import Given
from traces.report import numbers
from traces.spread import spread

LRU_BLOCKS = "1000,5000,10000,30000,50000,100000"

app = typer.Typer(no_args_is_help=True, help="Look at traces, convert them, make them.")

OutPath = Annotated[
    Path,
    typer.Argument(
        metavar="OUT", help="A name that ends in .jsonl, .jsonl.gz or .parquet.", show_default=False
    ),
]


@app.command()
def stats(
    trace: TracePath,
    *,
    lru: Annotated[
        str, typer.Option(help="Sizes of LRU prefix caches, in blocks of the trace.")
    ] = LRU_BLOCKS,
    limit: Limit = None,
    strict: Strict = False,
    json: FiguresPath = None,
) -> None:
    """Print lengths, arrivals, sessions and ideal prefix reuse of a trace, or of a ServeGen recording of clients."""
    from rich.console import Console

    from traces.figures import write_figures
    from traces.outputs import check_outputs
    from traces.survey import survey_trace
    from traces.terminal import exit_on_error, with_progress

    with exit_on_error():
        check_outputs(json, sources=(trace,))
        found = survey_trace(
            trace,
            lru=lru,
            limit=limit,
            strict=strict,
            watch=lambda requests: with_progress(requests, "read"),
        )
        if json is not None:
            write_figures(found.figures, json)
    Console(highlight=False, markup=False).print(found.summary)


@app.command()
@spread
def convert(
    trace: TracePath,
    out: OutPath,
    *,
    shaping: ShapingFlags,
    strict: Strict = False,
) -> None:
    """Write a trace of any format in Kilburn's own, on the way changing its arrivals, rate or length."""
    from rich.console import Console

    from traces.formats import open_trace
    from traces.native import NativeHeader
    from traces.outputs import check_outputs
    from traces.render import bad_rows
    from traces.shaping import SYSTEM_BLOCK_TOKENS, build_shaping, shaped
    from traces.terminal import exit_on_error, with_progress
    from traces.write import write_trace

    with exit_on_error():
        check_outputs(out, sources=(trace,))
        wanted = build_shaping(**asdict(shaping))
        source = open_trace(trace, strict=strict)
        header = NativeHeader(
            hash_block_tokens=source.hash_block_tokens
            or (SYSTEM_BLOCK_TOKENS if wanted.system_tokens else 0),
            has_arrivals=source.has_arrivals or wanted.arrivals is not None,
        )
        requests = shaped(source, wanted, times_needed=False)
        count = write_trace(header, with_progress(requests, "wrote"), out)
    console = Console(highlight=False, markup=False)
    num_bad = sum(source.bad_counts.values())
    for part in bad_rows(source.bad_rows, num_bad, source.num_requests + num_bad):
        console.print(part)
    console.print(
        f"{out}: {numbers.counted(count, 'request')} from {trace.name} ({source.format})",
        soft_wrap=True,
    )


@app.command()
def synth(
    context: typer.Context,
    out: OutPath,
    *,
    num: Annotated[
        int | None, typer.Option(help="How many requests, or sessions.", show_default=False)
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="poisson:RATE, gamma:RATE:CV, weibull:RATE:CV, every:SECONDS or at-once."
        ),
    ] = None,
    prompt: Annotated[
        str,
        typer.Option(
            help="Prompt lengths: fixed:N, uniform:LOW:HIGH, lognormal:MEAN:CV or geometric:MEAN."
        ),
    ] = "lognormal:1000:1",
    output: Annotated[str, typer.Option(help="Output lengths, likewise.")] = "lognormal:250:1",
    lengths: Annotated[
        Path | None,
        typer.Option(help="Draw pairs of lengths from this trace instead.", metavar="TRACE"),
    ] = None,
    sessions: Annotated[
        bool, typer.Option("--sessions", help="Conversations, each a closed loop that grows.")
    ] = False,
    turns: Annotated[str, typer.Option(help="Turns of a session.")] = "geometric:4",
    message: Annotated[str, typer.Option(help="New tokens of each turn.")] = "lognormal:120:1.5",
    think: Annotated[
        str, typer.Option(help="Milliseconds between answer and next turn.")
    ] = "lognormal:15000:1",
    max_context: Annotated[
        int, typer.Option(help="A session ends before the turn that would exceed this.")
    ] = 32_768,
    system_tokens: Annotated[
        int, typer.Option(help="Tokens of a prompt that all requests or sessions begin with.")
    ] = 0,
    clients: Annotated[
        Path | None,
        typer.Option(help="Draw from this ServeGen recording of clients.", metavar="FILE"),
    ] = None,
    start_s: Annotated[
        float, typer.Option(help="Of the recording of clients: the second of the day.")
    ] = 0.0,
    duration_s: Annotated[
        float, typer.Option(help="Of the recording of clients: how long.")
    ] = 3600.0,
    rate: Annotated[
        float | None,
        typer.Option(help="Of the recording of clients: scale to so many requests a second."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of whatever is drawn.")] = 0,
) -> None:
    """Make a trace: independent requests, conversations, or a mix of API clients."""
    from rich.console import Console

    from traces.outputs import check_outputs
    from traces.synth import Recipe, synthesise
    from traces.terminal import exit_on_error, with_progress
    from traces.write import write_trace

    with exit_on_error():
        _refuse_idle_flags(Given(context), lengths=lengths, sessions=sessions, clients=clients)
        check_outputs(out, sources=(lengths, clients))
        recipe = Recipe(
            num=num,
            arrivals=arrivals,
            prompt=prompt,
            output=output,
            lengths=lengths,
            sessions=sessions,
            turns=turns,
            message=message,
            think=think,
            max_context=max_context,
            system_tokens=system_tokens,
            clients=clients,
            start_s=start_s,
            duration_s=duration_s,
            rate=rate,
            seed=seed,
        )
        header, requests = synthesise(recipe)
        count = write_trace(header, with_progress(requests, "wrote"), out)
    Console(highlight=False, markup=False).print(
        f"{out}: {numbers.counted(count, 'request')}", soft_wrap=True
    )


def _refuse_idle_flags(
    given: Given, *, lengths: Path | None, sessions: bool, clients: Path | None
) -> None:
    """Refuses flags of one kind of trace where another is made.

    Raises:
        ConfigError: one is given.
    """
    if not sessions:
        given.refuse("turns", "message", "think", "max_context", why="without --sessions")
    if clients is None:
        given.refuse("start_s", "duration_s", "rate", why="without --clients")
    if sessions:
        given.refuse("prompt", why="with --sessions; give --message")
    for flag, source in (("--lengths", lengths), ("--clients", clients)):
        if source is not None:
            given.refuse("prompt", "output", why=f"with {flag}, which has the lengths")
