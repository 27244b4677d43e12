"""`kilburn serve` and `kilburn key`: flags to settings, then the model, the engine and the server, each in its place. Heavy imports wait.

Exit codes: 0 stopped as asked; 2 a setting or a file is wrong; 3 the model, or the core, failed.
"""

from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import asdict

from traces.flags import (
    MEMORY,
    SCHEDULER,
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
from traces.spread import spread

MODEL = "Model"
SERVER = "Server"
RECORDING = "Recording"


class ServeFlags(Struct, frozen=True, kw_only=True):
    """The flags of `ServeOptions`, in its names and with its defaults."""

    model: Annotated[
        Path | None,
        typer.Option(
            help="A GGUF file of the Llama family; else the default model.",
            metavar="FILE",
            rich_help_panel=MODEL,
        ),
    ] = None
    dtype: Annotated[
        str, typer.Option(help="auto, bfloat16 or float32.", rich_help_panel=MODEL)
    ] = "auto"
    device: Annotated[
        str,
        typer.Option(help="cpu, or cuda for the GPU kernels.", rich_help_panel=MODEL),
    ] = "cpu"
    threads: Annotated[
        int | None,
        typer.Option(help="Of the model; else one a physical core.", rich_help_panel=MODEL),
    ] = None
    block_size: BlockSize = 16
    num_blocks: NumBlocks = None
    kv_gb: KvGb = None
    watermark: Watermark = 0.01
    prefix_cache: Annotated[
        bool,
        typer.Option(
            "--prefix-cache/--no-prefix-cache",
            help="Keep computed blocks, and share them among equal prompts.",
            rich_help_panel=MEMORY,
        ),
    ] = True
    host_blocks: Annotated[
        int,
        typer.Option(
            help="Blocks of host memory to swap preempted work to.", rich_help_panel=MEMORY
        ),
    ] = 0
    preemption: Annotated[
        str,
        typer.Option(
            help="recompute, swap (needs --host-blocks) or auto, the cheaper of both.",
            rich_help_panel=SCHEDULER,
        ),
    ] = "recompute"
    link_gb_per_s: Annotated[
        float | None,
        typer.Option(
            help="For auto: 10^9 bytes a second between the pools.", rich_help_panel=SCHEDULER
        ),
    ] = None
    prefill_tokens_per_s: Annotated[
        float | None,
        typer.Option(help="For auto: how fast prompts are computed.", rich_help_panel=SCHEDULER),
    ] = None
    policy: Policy = "fcfs"
    aging_s: Annotated[
        float,
        typer.Option(
            help="Under priority and fair: seconds of waiting that lift a request one class; 0 never.",
            rich_help_panel=SCHEDULER,
        ),
    ] = 0.0
    max_partial_prefills: MaxPartialPrefills = None
    check_every_step: Annotated[
        bool,
        typer.Option(
            "--check-every-step",
            help="Hold the core to its invariants at every step; stop where one breaks.",
            rich_help_panel=SCHEDULER,
        ),
    ] = False
    max_context: MaxContext = None
    max_batch: MaxBatch = 64
    token_budget: TokenBudget = 256
    max_queue: Annotated[
        int,
        typer.Option(help="Most requests that wait; more get 429.", rich_help_panel=SCHEDULER),
    ] = 1024
    max_queue_tokens: Annotated[
        int,
        typer.Option(help="Most prompt tokens that wait; more get 429.", rich_help_panel=SCHEDULER),
    ] = 1 << 20
    host: Annotated[str, typer.Option(rich_help_panel=SERVER)] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="0 takes a free one.", rich_help_panel=SERVER)] = 8000
    drain_s: Annotated[
        float,
        typer.Option(
            help="How long running requests may go on after SIGTERM.", rich_help_panel=SERVER
        ),
    ] = 30.0
    api_keys: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of tenants and their keys (kilburn key writes them); else KILBURN_API_KEYS, or nobody needs a key.",
            metavar="FILE",
            rich_help_panel=SERVER,
        ),
    ] = None
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="A key, as NAME:KEY or KEY; may be given again. Other users of this machine can see it.",
            rich_help_panel=SERVER,
        ),
    ] = None
    guard_metrics: Annotated[
        bool,
        typer.Option(
            "--guard-metrics", help="With keys: /metrics needs one, too.", rich_help_panel=SERVER
        ),
    ] = False
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="An origin whose pages may use this server, or *; may be given again.",
            rich_help_panel=SERVER,
        ),
    ] = None
    record: Annotated[
        Path | None,
        typer.Option(
            help="Record every decision to FILE (.gz to compress), for replay --lockstep.",
            metavar="FILE",
            rich_help_panel=RECORDING,
        ),
    ] = None
    record_tokens: Annotated[
        bool,
        typer.Option(
            "--record-tokens",
            help="Record what was said, too, not only its shape.",
            rich_help_panel=RECORDING,
        ),
    ] = False


@spread
def serve(context: typer.Context, flags: ServeFlags) -> None:
    """Serve a model over the OpenAI API."""
    from gateway.serving import ServeOptions, serve_model
    from traces.terminal import exit_on_error

    with exit_on_error():
        settings = asdict(flags)
        for several in ("api_key", "cors_origin"):
            settings[several] = tuple(settings[several] or ())
        options = ServeOptions.checked(**settings)
        _refuse_idle_flags(Given(context), flags)
        serve_model(options)


def _refuse_idle_flags(given: Given, flags: ServeFlags) -> None:
    """Refuses flags that need another flag, which is not there. Where that one is given with a value that makes them idle they may stand, as
    in a replay.

    Raises:
        ConfigError: one is given.
    """
    if "preemption" not in given:
        if flags.preemption == "recompute":
            given.refuse("host_blocks", why="without --preemption swap or auto")
        if flags.preemption != "auto":
            given.refuse("link_gb_per_s", "prefill_tokens_per_s", why="without --preemption auto")
    if flags.policy == "fcfs" and "policy" not in given:
        given.refuse("aging_s", why="without --policy priority or fair")
    if flags.record is None:
        given.refuse("record_tokens", why="without --record")


def key(
    name: Annotated[str, typer.Argument(help="Of the tenant.", show_default=False)],
    *,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Read the key from standard input; else make one.")
    ] = False,
) -> None:
    """Make an API key: its table for --api-keys FILE on standard output, the key itself on standard error."""
    import secrets
    import sys

    from gateway.tenants import checked_key, table_of
    from traces.terminal import exit_on_error

    with exit_on_error():
        made = sys.stdin.readline().strip() if stdin else f"kb-{secrets.token_urlsafe(32)}"
        typer.echo(table_of(name, checked_key(made, "the key")), nl=False)
    if not stdin:
        typer.echo(
            f"{made}\n(the key of {name}: it is kept nowhere, so give it to them now)", err=True
        )
