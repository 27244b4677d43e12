"""Flags that commands over many replays share. Imports nothing that is slow."""

from pathlib import Path
from typing import Annotated

import typer

from sim.names import built_in_names

MODELS = built_in_names("models")
HARDWARE = built_in_names("hardware")

MACHINE = "Machine"
WORKLOAD = "Workload"
OUTPUT = "Output"

TracePath = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="CSV, JSON lines or Parquet; plain or gzip; the format is recognised by content.",
        show_default=False,
    ),
]
HardwareFile = Annotated[
    Path | None, typer.Option(help="TOML file with more hardware.", rich_help_panel=MACHINE)
]
BlockTable = Annotated[
    Path | None,
    typer.Option(
        help="Figures of python -m kernels.bench: what each block size costs.",
        rich_help_panel=MACHINE,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any setting of `kilburn replay`, such as block_size=32, arrivals=poisson:5 or preset=vllm; again for more.",
        rich_help_panel=WORKLOAD,
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse a trace with a bad row.", rich_help_panel=WORKLOAD)
]
WorkerCount = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        max=1024,
        help="Processes; by default one for each core. Results do not depend on it.",
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[
    Path | None,
    typer.Option(help="Write the result to FILE too.", metavar="FILE", rich_help_panel=OUTPUT),
]
CsvPath = Annotated[
    Path | None,
    typer.Option(
        "--csv", help="Write the table to FILE too.", metavar="FILE", rich_help_panel=OUTPUT
    ),
]
