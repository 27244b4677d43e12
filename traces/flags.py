"""Flags of the scheduler and its memory, as commands that run it take them, live or simulated. Each command has defaults of its own."""

from typing import Annotated, Final

import typer

MEMORY: Final = "KV memory"
SCHEDULER: Final = "Scheduler"

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
