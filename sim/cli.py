"""`kilburn replay`: flags to settings, a progress bar, the summary, the exit code. Heavy imports wait until the command runs.

Exit codes: 0 ok; 2 a setting, a file or (under --strict) a row is wrong; 3 a fault of ours.
"""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

_REDRAW_S = 0.1

Trace = Annotated[
    Path,
    typer.Argument(help="Azure CSV or Mooncake JSON lines, plain or gzip.", show_default=False),
]
Model = Annotated[
    str, typer.Option(help="A built-in model, or the path of a Hugging Face config.json.")
]
HardwareName = Annotated[str, typer.Option("--hardware", help="A name of the table, or cpu.")]
HardwareFile = Annotated[Path | None, typer.Option(help="TOML file with more hardware.")]
Blocks = Annotated[
    int | None, typer.Option(help="Size of the pool; else what fits.", show_default=False)
]


def replay(
    trace: Trace,
    *,
    model: Model = "Llama-3.1-8B",
    hardware: HardwareName = "A100-80",
    hardware_file: HardwareFile = None,
    dtype: Annotated[str, typer.Option(help="Of the weights.")] = "bf16",
    kv_dtype: Annotated[str, typer.Option(help="Of the KV cache.")] = "bf16",
    block_size: Annotated[int, typer.Option(help="Tokens a block.")] = 16,
    num_blocks: Blocks = None,
    kv_gb: Annotated[
        float | None, typer.Option(help="Size of the pool in 10^9 bytes.", show_default=False)
    ] = None,
    utilisation: Annotated[
        float, typer.Option(help="Share of device memory in use when the pool is derived.")
    ] = 0.9,
    watermark: Annotated[
        float, typer.Option(help="Share of the pool that admission leaves free.")
    ] = 0.01,
    max_batch: Annotated[int, typer.Option(help="Most sequences at once.")] = 256,
    token_budget: Annotated[int, typer.Option(help="Most tokens computed in a step.")] = 2048,
    max_context: Annotated[
        int | None, typer.Option(help="Most tokens of a sequence; else the model's.")
    ] = None,
    open_plans: Annotated[
        int, typer.Option(help="2: plan a step while the one before runs; 1: do not.")
    ] = 2,
    limit: Annotated[
        int | None, typer.Option(help="Replay only the first N requests.", metavar="N")
    ] = None,
    until_s: Annotated[float | None, typer.Option(help="Stop at this simulated second.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a trace with a bad row.")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="Write every figure to FILE.", metavar="FILE")
    ] = None,
) -> None:
    """Replay a trace through the scheduler on simulated hardware."""
    from rich.console import Console

    from engine.core.errors import InvariantError, ServeError

    try:
        _replay(
            trace,
            hardware_file=hardware_file,
            strict=strict,
            json=json,
            settings={
                "model": model,
                "hardware": hardware,
                "dtype": dtype,
                "kv_dtype": kv_dtype,
                "block_size": block_size,
                "num_blocks": num_blocks,
                "kv_gb": kv_gb,
                "utilisation": utilisation,
                "watermark": watermark,
                "max_batch": max_batch,
                "token_budget": token_budget,
                "max_context": max_context,
                "open_plans": open_plans,
                "limit": limit,
                "until_s": until_s,
            },
        )
    except ServeError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(
            f"[bold red]error:[/] {_escaped(error.message)}"
        )
        raise typer.Exit(3 if isinstance(error, InvariantError) else 2) from None


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _replay(
    trace: Path,
    *,
    hardware_file: Path | None,
    strict: bool,
    json: Path | None,
    settings: dict[str, object],
) -> None:
    from rich.console import Console

    from sim.config import build_config
    from sim.render import render
    from sim.replay import replay as run
    from sim.replay import resolve
    from sim.report import write_report
    from traces.formats import open_trace

    resolved = resolve(build_config(**settings), hardware_file)
    rows = open_trace(trace, strict=strict)
    with _ProgressLine() as progress:
        report = run(rows, resolved, progress)
    if json is not None:
        write_report(report, json)
    console = Console(highlight=False)
    console.print(render(report, console.width))


class _ProgressLine:
    """A spinner with the requests replayed so far, on stderr, where that is a terminal."""

    def __enter__(self) -> "_ProgressLine":
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),
            transient=True,
            auto_refresh=False,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("replaying", total=None)
        self._progress.start()
        self._drawn_at = self._started_at = time.perf_counter()
        return self

    def __call__(self, count: int, now_ns: int) -> None:
        at = time.perf_counter()
        if at - self._drawn_at < _REDRAW_S:
            return
        self._drawn_at = at
        rate = count / (at - self._started_at)
        self._progress.update(
            self._task,
            description=f"{count:,} requests, {now_ns / 1e9:,.0f} s simulated, {rate:,.0f} requests/s",
            refresh=True,
        )

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
