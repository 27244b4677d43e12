"""Flags that several commands take, each written once: of the scheduler and its memory, of the trace, of the reports.

Flags of the scheduler have defaults of each command's own. Imports nothing that is slow.
"""

from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec import Struct

MEMORY: Final = "KV memory"
SCHEDULER: Final = "Scheduler"
WORKLOAD: Final = "Workload"
OUTPUT: Final = "Output"

NumBlocks = Annotated[
    int | None,
    typer.Option(help="Size of the pool in blocks; else what fits.", rich_help_panel=MEMORY),
]
KvGb = Annotated[
    float | None,
    typer.Option(help="Size of the pool in 10^9 bytes; else what fits.", rich_help_panel=MEMORY),
]
BlockSize = Annotated[int, typer.Option(help="Token positions of a block.", rich_help_panel=MEMORY)]
Watermark = Annotated[
    float,
    typer.Option(help="Share of the pool that admission leaves free.", rich_help_panel=MEMORY),
]
Policy = Annotated[
    str,
    typer.Option(help="Who is admitted next: fcfs, priority or fair.", rich_help_panel=SCHEDULER),
]
MaxPartialPrefills = Annotated[
    int | None,
    typer.Option(
        help="Most prompts that are computed in parts at once; else as many as fit.",
        rich_help_panel=SCHEDULER,
    ),
]
MaxContext = Annotated[
    int | None,
    typer.Option(help="Most tokens of one request; else the model's.", rich_help_panel=SCHEDULER),
]
MaxBatch = Annotated[
    int, typer.Option(help="Most sequences that run at once.", rich_help_panel=SCHEDULER)
]
TokenBudget = Annotated[
    int, typer.Option(help="Most positions computed in a step.", rich_help_panel=SCHEDULER)
]

TracePath = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="CSV, JSON lines or Parquet; plain or gzip; the format is recognised by content.",
        show_default=False,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(help="Only the first N requests.", metavar="N", rich_help_panel=WORKLOAD),
]
Seed = Annotated[int, typer.Option(help="Of whatever is drawn.", rich_help_panel=WORKLOAD)]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse a trace with a bad row.", rich_help_panel=WORKLOAD)
]
FiguresPath = Annotated[
    Path | None,
    typer.Option(help="Write every figure to FILE.", metavar="FILE", rich_help_panel=OUTPUT),
]


class ShapingFlags(Struct, frozen=True, kw_only=True):
    """The flags of `Shaping`, in its names and with its defaults."""

    limit: Limit = None
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="poisson:RATE, gamma:RATE:CV, weibull:RATE:CV, every:SECONDS or at-once, instead of the recorded times.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None
    open_loop: Annotated[
        bool,
        typer.Option(
            "--open-loop",
            help="Send requests of sessions at their recorded times.",
            rich_help_panel=WORKLOAD,
        ),
    ] = False
    rate_scale: Annotated[
        float,
        typer.Option(
            help="So many times the requests in the same span; below 1 some are left out.",
            rich_help_panel=WORKLOAD,
        ),
    ] = 1.0
    time_scale: Annotated[
        float,
        typer.Option(help="Arrivals so many times as far apart.", rich_help_panel=WORKLOAD),
    ] = 1.0
    system_tokens: Annotated[
        int,
        typer.Option(
            help="Tokens of a prompt that is put before every request.", rich_help_panel=WORKLOAD
        ),
    ] = 0
    seed: Seed = 0


class ReportFlags(Struct, frozen=True, kw_only=True):
    """Where a command that reports on every request writes to."""

    json: FiguresPath = None
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a report to FILE, one page that needs nothing else; JSON and CSV lie beside it.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    csv: Annotated[
        Path | None,
        typer.Option(
            help="Write every figure and every request as CSV files to DIR.",
            metavar="DIR",
            rich_help_panel=OUTPUT,
        ),
    ] = None
