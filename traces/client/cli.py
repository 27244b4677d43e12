"""`kilburn bench`: flags to settings, progress, and the summary. Heavy imports wait until the command runs.

Exit codes: 0 ok; 1 no request is done; 2 a setting, the server, a file or (under --strict) a row is wrong; 3 a fault of ours; 130 interrupted, after the report.
"""

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import asdict

from traces.flags import OUTPUT, WORKLOAD, ReportFlags, ShapingFlags, Strict
from traces.spread import spread

SERVER = "Server"
INTERRUPTED = 130


@spread
def bench(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="Such as http://127.0.0.1:8000; with or without /v1.",
            show_default=False,
        ),
    ],
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE", help="A trace or a recording, of any format.", show_default=False
        ),
    ],
    *,
    endpoint: Annotated[
        str, typer.Option(help="completions or chat.", rich_help_panel=SERVER)
    ] = "completions",
    model: Annotated[
        str | None,
        typer.Option(help="Else the first that /v1/models names.", rich_help_panel=SERVER),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Sent as a bearer token.",
            envvar="OPENAI_API_KEY",
            show_envvar=True,
            rich_help_panel=SERVER,
        ),
    ] = None,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos/--no-ignore-eos",
            help="Ask the server to go on to the trace's length; servers that refuse the field need --no-ignore-eos.",
            rich_help_panel=SERVER,
        ),
    ] = True,
    temperature: Annotated[float, typer.Option(help="Of sampling.", rich_help_panel=SERVER)] = 0.0,
    timeout_s: Annotated[
        float,
        typer.Option(
            help="A request that is not over so long after it was due has failed.",
            rich_help_panel=SERVER,
        ),
    ] = 600.0,
    warm_up: Annotated[
        int,
        typer.Option(help="Short requests ahead of the run, in no figure.", rich_help_panel=SERVER),
    ] = 1,
    tokens_per_word: Annotated[
        float | None,
        typer.Option(
            help="Of the prompts' words; else measured on the server.", rich_help_panel=SERVER
        ),
    ] = None,
    shaping: ShapingFlags,
    duration_s: Annotated[
        float | None,
        typer.Option(
            help="Send nothing that is due later; what is open is waited for.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            help="Promises as of `kilburn plan`, such as ttft_p99=2s,tpot_p99=60ms,goodput=95%: judges each request and tells the "
            "goodput, the requests a second that keep all limits at once.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    strict: Strict = False,
    against: Annotated[
        Path | None,
        typer.Option(
            help="JSON of a replay, or of another run, to lay over the measurement.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    reports: ReportFlags,
) -> None:
    """Send a trace's requests to a server at their times, and report what came back."""
    from rich.console import Console

    from traces.client.against import read_prediction
    from traces.client.bench import bench as run_bench
    from traces.client.figures import BenchSettings
    from traces.client.progress import progress
    from traces.client.render import render
    from traces.client.settings import check_settings, raise_open_files
    from traces.client.target import find_target
    from traces.client.write import write_csv, write_page
    from traces.figures import write_figures
    from traces.formats import open_trace
    from traces.outputs import check_outputs
    from traces.render import bad_rows
    from traces.shaping import build_shaping
    from traces.slo import parse_slo
    from traces.terminal import exit_on_error

    json, html, csv = reports.json, reports.html, reports.csv
    with exit_on_error():
        beside = html.with_suffix(".json") if html is not None and json is None else json
        limits = parse_slo(slo) if slo is not None else None
        check_outputs(beside, html, folder=csv, sources=(trace, against))
        settings = BenchSettings(
            endpoint=endpoint, ignore_eos=ignore_eos, temperature=temperature, timeout_s=timeout_s, duration_s=duration_s, warm_up=warm_up,
            shaping=build_shaping(**asdict(shaping)),
        )  # fmt: skip
        kind = check_settings(settings, tokens_per_word)
        prediction = read_prediction(against) if against is not None else None
        rows = open_trace(trace, strict=strict)
        raise_open_files()
        target = find_target(
            url, endpoint=kind, model=model, api_key=api_key, ignore_eos=ignore_eos, temperature=temperature, timeout_s=timeout_s
        )  # fmt: skip
        with progress() as watch:
            run = run_bench(
                target,
                rows,
                settings,
                tokens_per_word=tokens_per_word,
                against=prediction,
                watch=watch,
                slo=limits,
            )
        if html is not None:
            write_page(
                html,
                run,
                json=json or html.with_suffix(".json"),
                csv=csv or html.with_name(f"{html.stem}-csv"),
            )
        else:
            if json is not None:
                write_figures(run.report, json)
            if csv is not None:
                write_csv(csv, run)
    console = Console(highlight=False, markup=False)
    report = run.report
    bad = sum(report.trace.bad.values())
    for part in bad_rows(report.trace.bad_rows, bad, report.trace.requests + bad):
        console.print(part)
    console.print(render(report))
    if report.requests.interrupted:
        raise typer.Exit(INTERRUPTED)
    if not report.requests.done:
        raise typer.Exit(1)
