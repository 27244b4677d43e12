"""`kilburn plan`: flags to a question, a line of progress, the answer. Heavy imports wait until the command runs; none is torch.

Exit codes: 0 an answer; 1 nothing that was looked at can do it, and the output says why; 2 a setting or a file is wrong; 3 a fault of ours;
130 interrupted.
"""

from pathlib import Path
from typing import Annotated

import typer

from sim.flags import (
    HARDWARE,
    MACHINE,
    BlockTable,
    HardwareFile,
    Model,
    PagePath,
    ResultPath,
    Settings,
    TablePath,
    WorkerCount,
)
from traces.flags import OUTPUT, WORKLOAD, Limit, Seed, Strict, TracePath
from traces.given import Given

SEARCH = "Search"


def plan(
    context: typer.Context,
    trace: TracePath,
    *,
    slo: Annotated[
        str,
        typer.Option(
            help="Limits on ttft, tpot and e2e at percentiles, and a share of requests that keep all of them: "
            "ttft_p99=2s,tpot_p99=60ms,goodput=95%.",
            rich_help_panel=SEARCH,
            show_default=False,
        ),
    ],
    model: Model = "Llama-3.1-8B",
    hardware: Annotated[
        str,
        typer.Option(
            help=f"What to compare, with commas between: {HARDWARE}.", rich_help_panel=MACHINE
        ),
    ] = "A100-80",
    hardware_file: HardwareFile = None,
    block_table: BlockTable = None,
    price: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=USD",
            help="US dollars for an hour of one device, instead of the table's: H200=3.2; again for more.",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="poisson:RATE, gamma:RATE:CV, weibull:RATE:CV or every:SECONDS, instead of the recorded times; of sessions, "
            "where the trace has them.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    settings: Settings = None,
    limit: Limit = None,
    only_fitting: Annotated[
        bool,
        typer.Option(
            "--only-fitting",
            help="Leave out, and count, requests that the context cannot hold, and the rest of their session.",
            rich_help_panel=WORKLOAD,
        ),
    ] = False,
    seed: Seed = 0,
    strict: Strict = False,
    users: Annotated[
        bool | None,
        typer.Option(
            "--users/--fleet",
            help="How many users of a session trace fit, or how many replicas a trace needs; by default users where sessions "
            "have no arrival times.",
            rich_help_panel=SEARCH,
            show_default=False,
        ),
    ] = None,
    max_replicas: Annotated[
        int, typer.Option(min=1, max=1024, help="Look no further.", rich_help_panel=SEARCH)
    ] = 64,
    max_users: Annotated[
        int, typer.Option(min=1, max=100_000, help="Look no further.", rich_help_panel=SEARCH)
    ] = 1024,
    watch_s: Annotated[
        float,
        typer.Option(
            help="Seconds for which users are watched, after a warm-up of a sixth of that.",
            rich_help_panel=SEARCH,
        ),
    ] = 7200.0,
    window_s: Annotated[
        float, typer.Option(min=1, help="Of the figure by windows.", rich_help_panel=SEARCH)
    ] = 60.0,
    seeds: Annotated[
        int,
        typer.Option(
            min=0, max=1000, help="Redraws of the trace; 0: none.", rich_help_panel=SEARCH
        ),
    ] = 10,
    sensitivity: Annotated[
        bool, typer.Option(help="Change one setting at a time.", rich_help_panel=SEARCH)
    ] = True,
    autoscaling: Annotated[
        bool,
        typer.Option(
            help="The figure by windows: what scaling over time could come to.",
            rich_help_panel=SEARCH,
        ),
    ] = True,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="The answer alone: no redraws, sensitivity or windows.",
            rich_help_panel=SEARCH,
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of plan.html, plan.json, plan.csv and the simulations, which are not run again. By default "
            "kilburn-plan/TRACE-HARDWARE-DIGEST, and simulations for all plans in kilburn-plan/points.",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = None,
    workers: WorkerCount = None,
    json: ResultPath = None,
    csv: TablePath = None,
    html: PagePath = None,
) -> None:
    """Find the fewest replicas and the cheapest hardware that keep promises on a trace, or how many users a machine can serve."""
    from rich.console import Console

    from engine.core.errors import ConfigError
    from sim.hardware import find_hardware
    from sim.plan.desk import Desk
    from sim.plan.planner import describe
    from sim.plan.planner import plan as run
    from sim.plan.points import parse_prices
    from sim.plan.progress import line
    from sim.plan.question import Question, build_crowd
    from sim.plan.render import render
    from sim.plan.table import to_csv
    from sim.report.plan_page import document
    from sim.sweep.axes import Files, parse_settings, with_flags
    from sim.sweep.cache import Cache, write_result
    from sim.sweep.digest import file_digest
    from sim.sweep.folder import folders_of, stem_of
    from sim.sweep.workers import Workers
    from traces.figures import encode_figures
    from traces.outputs import check_outputs
    from traces.report.html import page
    from traces.slo import parse_slo
    from traces.terminal import exit_on_error

    with exit_on_error():
        given = Given(context)
        if quick:
            contradicted = [
                name
                for name, on in (
                    ("seeds", seeds > 0),
                    ("sensitivity", sensitivity),
                    ("autoscaling", autoscaling),
                )
                if on
            ]
            given.refuse("window_s", *contradicted, why="with --quick")
        if not autoscaling:
            given.refuse("window_s", why="with --no-autoscaling")
        check_outputs(
            json,
            csv,
            html,
            folder=out or Path("kilburn-plan"),
            sources=(trace, hardware_file, block_table),
        )
        flags = {
            "model": model if "model" in given else None,
            "seed": seed if "seed" in given else None,
            "arrivals": arrivals,
            "limit": limit,
        }
        base = with_flags(parse_settings(settings or []), flags)
        base.setdefault("model", model)
        seed = base.setdefault("seed", seed)
        question = Question(
            trace=trace,
            trace_sha256=file_digest(trace),
            slo=parse_slo(slo),
            settings=base,
            files=Files(hardware_file, block_table),
            strict=strict,
            only_fitting=only_fitting,
            max_replicas=max_replicas,
            max_users=max_users,
            crowd=build_crowd(watch_s, seed),
            window_s=window_s,
            seeds=0 if quick else seeds,
            with_sensitivity=sensitivity and not quick,
            with_autoscaling=autoscaling and not quick,
        )
        names = [name.strip() for name in hardware.split(",") if name.strip()]
        if not names:
            raise ConfigError("--hardware names nothing; write it as H100 or A100-80,H100")
        for name in names:
            find_hardware(name, hardware_file)
        found = describe(question)
        if users is None:
            users = found.sessions > 0 and not found.has_arrivals
        if users:
            given.refuse("max_replicas", "window_s", why="where users are sized; give --fleet")
        else:
            given.refuse("max_users", "watch_s", why="where a fleet is sized; give --users")
        prices = parse_prices(price or [], names)
        asked = question.asked(names, prices, users=users)
        folder, points = folders_of(out, "kilburn-plan", [stem_of(trace), "+".join(names)], asked)
        try:
            with Workers(workers) as processes, line() as watch:
                desk = Desk(processes, Cache(points), watch)
                result = run(question, names, prices, desk, found, users=users)
        except KeyboardInterrupt:
            typer.echo(f"interrupted; what is done is in {points}: run it again to go on", err=True)
            raise typer.Exit(130) from None
        write_result(encode_figures(result), folder / "plan.json", json)
        write_result(to_csv(result), folder / "plan.csv", csv)
        text = page(document(result, ["plan.json", "plan.csv"])).encode()
        write_result(text, folder / "plan.html", html)
    Console(highlight=False, markup=False).print(render(result))
    typer.echo(f"\nwritten to {folder}: plan.html to read, plan.json and plan.csv for programs")
    if result.best is None:
        raise typer.Exit(1)
