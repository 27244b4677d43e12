"""`kilburn sweep`: flags to axes, a progress bar, the table. Heavy imports wait until the command runs; none is torch.

Exit codes: 0 ok; 1 some points failed, and the table says why; 2 a setting or a file is wrong, or no point can run; 3 a fault of ours; 130 interrupted.
"""

from pathlib import Path
from typing import Annotated

import typer

from sim.flags import (
    BlockTable,
    HardwareFile,
    HardwareOverride,
    ModelOverride,
    PagePath,
    ResultPath,
    Settings,
    TablePath,
    WorkerCount,
)
from traces.flags import OUTPUT, WORKLOAD, Limit, Strict, TracePath


def sweep(
    trace: TracePath,
    *,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="A setting of `kilburn replay` and its values: block_size=8,16,32, rate=0.5,1,2 or replicas=1..8; again for "
            "more, every combination is run.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            help="Promises as of `kilburn plan`, such as ttft_p99=2s,tpot_p99=60ms,goodput=95%: counts the requests a second that keep "
            "all limits at once, and says which points keep the promises.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    model: ModelOverride = None,
    hardware: HardwareOverride = None,
    hardware_file: HardwareFile = None,
    block_table: BlockTable = None,
    settings: Settings = None,
    limit: Limit = None,
    strict: Strict = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of sweep.html, sweep.json, sweep.csv and, in points/, every figure of each point; a point that is there is not "
            "computed again. By default kilburn-sweep/TRACE-AXES-DIGEST, and points for all sweeps in kilburn-sweep/points.",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = None,
    workers: WorkerCount = None,
    json: ResultPath = None,
    csv: TablePath = None,
    html: PagePath = None,
) -> None:
    """Replay a trace at every combination of settings, on all cores; interrupt it and it goes on where it was."""
    from rich.console import Console

    from sim.report.sweep_page import document
    from sim.sweep.axes import Files, parse_axes, parse_settings, with_flags
    from sim.sweep.cache import Cache, write_result
    from sim.sweep.digest import file_digest
    from sim.sweep.folder import folders_of, stem_of
    from sim.sweep.progress import bar
    from sim.sweep.render import render
    from sim.sweep.result import to_csv
    from sim.sweep.runner import sweep as run
    from sim.sweep.workers import Workers
    from traces.figures import encode_figures
    from traces.outputs import check_outputs
    from traces.report.html import page
    from traces.slo import parse_slo
    from traces.terminal import exit_on_error

    with exit_on_error():
        check_outputs(
            json,
            csv,
            html,
            folder=out or Path("kilburn-sweep"),
            sources=(trace, hardware_file, block_table),
        )
        limits = parse_slo(slo) if slo is not None else None
        axes = parse_axes(axis or [])
        base = with_flags(
            parse_settings(settings or []), {"model": model, "hardware": hardware, "limit": limit}
        )
        tables = [file_digest(file) if file else None for file in (hardware_file, block_table)]
        asked = [file_digest(trace), base, axes, strict, limits, tables]
        words = [stem_of(trace), "+".join(each.name for each in axes)]
        folder, points = folders_of(out, "kilburn-sweep", words, asked)
        cache = Cache(points)
        try:
            with Workers(workers) as processes, bar() as watch:
                result = run(
                    trace,
                    base,
                    axes,
                    workers=processes,
                    cache=cache,
                    files=Files(hardware_file, block_table),
                    strict=strict,
                    slo=limits,
                    watch=watch,
                )
        except KeyboardInterrupt:
            typer.echo(f"interrupted; what is done is in {points}: run it again to go on", err=True)
            raise typer.Exit(130) from None
        write_result(encode_figures(result), folder / "sweep.json", json)
        write_result(to_csv(result), folder / "sweep.csv", csv)
        text = page(document(result, ["sweep.json", "sweep.csv"])).encode()
        write_result(text, folder / "sweep.html", html)
    console = Console(highlight=False, markup=False)
    console.print(render(result, console.width))
    count = f"{len(result.points):,} point{'s' * (len(result.points) != 1)}"
    typer.echo(
        f"\n{count}; written to {folder}: sweep.html to read, sweep.json and sweep.csv for programs"
    )
    if any(point.error is not None for point in result.points):
        raise typer.Exit(1)
