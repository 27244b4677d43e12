"""Flags of commands that replay traces, each written once. Imports nothing that is slow."""

from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct
from msgspec.structs import asdict

from sim.names import built_in_names
from traces.flags import (
    OUTPUT,
    SCHEDULER,
    WORKLOAD,
    BlockSize,
    KvGb,
    MaxBatch,
    MaxContext,
    MaxPartialPrefills,
    NumBlocks,
    Policy,
    TokenBudget,
    Watermark,
)
from traces.given import Given

MODELS = built_in_names("models")
HARDWARE = built_in_names("hardware")
MACHINE = "Machine"

_MODEL = typer.Option(
    help=f"{MODELS}, or the path of a Hugging Face config.json.", rich_help_panel=MACHINE
)
_HARDWARE = typer.Option(help=f"{HARDWARE}, or cpu, measured now.", rich_help_panel=MACHINE)

Model = Annotated[str, _MODEL]
Hardware = Annotated[str, _HARDWARE]
ModelOverride = Annotated[str | None, _MODEL]
HardwareOverride = Annotated[str | None, _HARDWARE]
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
ResultPath = Annotated[
    Path | None,
    typer.Option(help="Write the result to FILE too.", metavar="FILE", rich_help_panel=OUTPUT),
]
PagePath = Annotated[
    Path | None,
    typer.Option(
        help="Write the report to FILE too, one page that needs nothing else.",
        metavar="FILE",
        rich_help_panel=OUTPUT,
    ),
]
TablePath = Annotated[
    Path | None,
    typer.Option(
        "--csv", help="Write the table to FILE too.", metavar="FILE", rich_help_panel=OUTPUT
    ),
]


def _set_defaults(context: typer.Context, settings: dict[str, Any]) -> None:
    """Of the flags that are read from now on, where nobody gives them."""
    context.default_map = {**(context.default_map or {}), **settings}


def _use_preset(context: typer.Context, name: str | None) -> str | None:
    """Makes the preset's settings the defaults of the other flags."""
    if name is not None:
        from sim.presets import preset
        from traces.terminal import exit_on_error

        with exit_on_error():
            _set_defaults(context, preset(name))
    return name


def _use_recorded_settings(context: typer.Context, cost: str) -> str:
    """Makes the settings of a recording that steps are fitted to the defaults of the other flags."""
    from sim.pricing import recorded_settings
    from traces.terminal import exit_on_error

    with exit_on_error():
        _set_defaults(context, recorded_settings(cost))
    return cost


class ReplayFlags(Struct, frozen=True, kw_only=True):
    """The flags of `ReplayConfig` but its shaping, in its names and with its defaults; and what they are read with."""

    model: Model = "Llama-3.1-8B"
    hardware: Hardware = "A100-80"
    hardware_file: HardwareFile = None
    block_table: BlockTable = None
    cost: Annotated[
        str,
        typer.Option(
            help="What a step costs: roofline; fitted:RECORDING, which also gives the settings that no flag gives; "
            "or table:FILE.csv.",
            rich_help_panel=MACHINE,
            is_eager=True,
            callback=_use_recorded_settings,
        ),
    ] = "roofline"
    dtype: Annotated[
        str,
        typer.Option(
            help="Of the weights: fp32, fp16, bf16, fp8, int8 or int4.", rich_help_panel=MACHINE
        ),
    ] = "bf16"
    kv_dtype: Annotated[
        str,
        typer.Option(
            help="Of the KV cache: fp32, fp16, bf16, fp8 or int8.", rich_help_panel=MACHINE
        ),
    ] = "bf16"
    tensor_parallel: Annotated[
        int,
        typer.Option(
            "--tensor-parallel", "--tp", help="Devices a replica.", rich_help_panel=MACHINE
        ),
    ] = 1
    num_blocks: NumBlocks = None
    kv_gb: KvGb = None
    utilisation: Annotated[
        float,
        typer.Option(
            help="Share of device memory in use, when the pool is derived.",
            rich_help_panel=MACHINE,
        ),
    ] = 0.9
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings of another engine, such as vllm; flags given beside it come first.",
            rich_help_panel=SCHEDULER,
            is_eager=True,
            callback=_use_preset,
        ),
    ] = None
    block_size: BlockSize = 16
    watermark: Watermark = 0.01
    max_batch: MaxBatch = 256
    token_budget: TokenBudget = 2048
    max_context: MaxContext = None
    open_plans: Annotated[
        int,
        typer.Option(
            help="2: plan a step while the one before runs; 1: do not.", rich_help_panel=SCHEDULER
        ),
    ] = 2
    prefix_cache: Annotated[
        bool,
        typer.Option(
            "--prefix-cache/--no-prefix-cache",
            help="Share blocks of equal content, where the trace has hash ids.",
            rich_help_panel=SCHEDULER,
        ),
    ] = True
    max_partial_prefills: MaxPartialPrefills = None
    policy: Policy = "fcfs"
    preemption: Annotated[
        str, typer.Option(help="recompute, swap or auto.", rich_help_panel=SCHEDULER)
    ] = "recompute"
    host_gb: Annotated[
        float,
        typer.Option(help="Host memory to swap to, 10^9 bytes a replica.", rich_help_panel=MACHINE),
    ] = 0.0
    link_gb_per_s: Annotated[
        float,
        typer.Option(help="Between device and host, each direction.", rich_help_panel=MACHINE),
    ] = 25.0
    replicas_per_link: Annotated[
        int, typer.Option(help="So many replicas share a link.", rich_help_panel=MACHINE)
    ] = 1
    replicas: Annotated[
        int, typer.Option(help="Engines behind the router.", rich_help_panel=MACHINE)
    ] = 1
    router: Annotated[
        str,
        typer.Option(help="round-robin, least-loaded or prefix-aware.", rich_help_panel=MACHINE),
    ] = "round-robin"
    allocator: Annotated[
        str,
        typer.Option(
            help="paged; for comparison one contiguous run a sequence: max, pow2 or oracle.",
            rich_help_panel=SCHEDULER,
        ),
    ] = "paged"
    batching: Annotated[
        str,
        typer.Option(
            help="continuous; for comparison static: batch after batch.", rich_help_panel=SCHEDULER
        ),
    ] = "continuous"
    beam_width: Annotated[
        int | None,
        typer.Option(
            help="Hypotheses of a beam search for each answer; else sampled.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None
    num_sequences: Annotated[
        int, typer.Option("--n", help="Answers to each prompt.", rich_help_panel=WORKLOAD)
    ] = 1

    def settings(self, given: Given) -> dict[str, Any]:
        """The fields that are settings of a replay: a preset or a recording has set defaults, and files say what names stand for."""
        names = asdict(self)
        for name in ("preset", "hardware_file", "block_table"):
            del names[name]
        if "kv_gb" in given and "num_blocks" not in given:
            names["num_blocks"] = None  # A recording's, which was made with a pool of another size.
        return names


def refuse_idle_flags(given: Given, flags: ReplayFlags) -> None:
    """Refuses flags of a replay that need another flag, which is not there. Where that one is given with a value that makes them idle they
    may stand: a script compares.

    Raises:
        ConfigError: one is given.
    """
    if flags.preemption == "recompute" and "preemption" not in given:
        given.refuse(
            *("host_gb", "link_gb_per_s", "replicas_per_link"),
            why="without --preemption swap or auto",
        )
    if flags.replicas == 1 and "replicas" not in given:
        given.refuse("router", "replicas_per_link", why="with one replica; give --replicas")
    if flags.num_blocks is not None or flags.kv_gb is not None:
        by_flag = "num_blocks" in given or "kv_gb" in given
        sized = "--num-blocks or --kv-gb" if by_flag else "the recording"
        given.refuse("utilisation", why=f"where {sized} says the pool's size")
