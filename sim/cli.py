"""`kilburn replay`: flags to settings, and the summary. Heavy imports wait until the command runs; none is torch.

Exit codes: 0 ok; 1 under --lockstep, the replay parts from the recording; 2 a setting, a file or (under --strict) a row is wrong; 3 a fault of ours.
"""

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import asdict

from sim.flags import ReplayFlags, refuse_idle_flags
from traces.flags import OUTPUT, WORKLOAD, ReportFlags, ShapingFlags, Strict, TracePath
from traces.given import Given
from traces.spread import spread


@spread
def replay(
    context: typer.Context,
    trace: TracePath,
    *,
    flags: ReplayFlags,
    shaping: ShapingFlags,
    until_s: Annotated[
        float | None,
        typer.Option(help="Stop at this simulated second.", rich_help_panel=WORKLOAD),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            help="Promises as of `kilburn plan`, such as ttft_p99=2s,tpot_p99=60ms: judges each request and tells the goodput, the "
            "requests a second that keep all limits at once.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    strict: Strict = False,
    lockstep: Annotated[
        bool,
        typer.Option(
            "--lockstep",
            help="TRACE is a recording: make its calls again, and let the twin make them from its inputs; "
            "the settings are the recording's.",
            rich_help_panel=WORKLOAD,
        ),
    ] = False,
    reports: ReportFlags,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Record every call and decision to FILE, gzip if it ends in .gz, for kilburn inspect, --lockstep and --cost "
            "fitted:FILE; steps are simulated one by one, so it takes longer.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    record_replica: Annotated[
        int,
        typer.Option(
            help="Which replica --record records, from 0.", metavar="N", rich_help_panel=OUTPUT
        ),
    ] = 0,
) -> None:
    """Replay a trace through the scheduler on simulated hardware."""
    from rich.console import Console

    from sim.config import build_config
    from sim.recorder import Recording, check_recording
    from sim.replay import replay_in_full, resolve
    from sim.report.terminal import render
    from traces.figures import write_figures
    from traces.formats import open_trace
    from traces.outputs import check_outputs
    from traces.slo import parse_slo
    from traces.terminal import exit_on_error, with_progress

    given = Given(context)
    if lockstep:
        from sim.lockstep import replay_lockstep

        with exit_on_error():
            given.refuse_all_but("lockstep", why="under --lockstep: settings are the recording's")
            code = replay_lockstep(trace, typer.echo)
        raise typer.Exit(code)
    json, html, csv = reports.json, reports.html, reports.csv
    with exit_on_error():
        refuse_idle_flags(given, flags)
        if record is None:
            given.refuse("record_replica", why="without --record")
        beside = html.with_suffix(".json") if html is not None and json is None else json
        check_outputs(
            beside,
            html,
            record,
            folder=csv,
            sources=(trace, flags.hardware_file, flags.block_table),
        )
        limits = parse_slo(slo) if slo is not None else None
        config = build_config(**flags.settings(given), **asdict(shaping), until_s=until_s)
        recording = Recording(record, record_replica) if record is not None else None
        if recording is not None:
            check_recording(recording, config, trace)
        resolved = resolve(config, flags.hardware_file, flags.block_table)
        rows = open_trace(trace, strict=strict)
        report, run = replay_in_full(
            rows,
            resolved,
            lambda requests: with_progress(requests, "replaying"),
            recording,
            limits,
        )
        if html is not None:
            from sim.report.write import write_page
            from traces.shaping import hash_block_tokens, shaped

            write_page(
                html,
                report,
                run,
                resolved,
                lambda: with_progress(shaped(open_trace(trace), config.shaping), "drawing"),
                hash_block_tokens(rows, config.shaping),
                json=beside or html.with_suffix(".json"),
                csv=csv or html.with_name(f"{html.stem}-csv"),
            )
        else:
            if json is not None:
                write_figures(report, json)
            if csv is not None:
                from sim.report.requests import Rows
                from sim.report.write import write_csv

                write_csv(csv, report, Rows(run.ledger))
    console = Console(highlight=False, markup=False)
    console.print(render(report, console.width))
    if recording is not None:
        what = (
            f"replica {recording.replica} of {config.replicas}"
            if config.replicas > 1
            else "the run"
        )
        typer.echo(f"recorded {what}: kilburn inspect {recording.path}")
