"""Puts a server together: socket, model, engine, recorder, gateway; and takes them down again in order.

Knows which part needs which setting; knows nothing of requests, blocks or tensors.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta, Struct
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from engine.chat import ChatTemplate
from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig, SwapCosts
from engine.core.errors import ConfigError
from engine.loop import Engine
from engine.models.dtype import DtypeName, default_dtype
from engine.runner import TorchRunner, build_runner
from engine.tokenizer import Codec
from engine.weights.load import LoadedModel, load_model
from gateway.config import GatewayConfig
from gateway.engine import Served
from gateway.renewal import reread
from gateway.server import bind, run, serve, url_of
from gateway.tenants import VARIABLE, Tenants, load_tenants
from traces.checked import checked
from traces.outputs import check_outputs
from traces.recording_writer import RecordingWriter

Positive = Annotated[int, Meta(ge=1)]


class ServeOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `kilburn serve` can be told."""

    model: Path | None = None
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    device: Literal["cpu", "cuda"] = "cpu"
    threads: Positive | None = None
    block_size: Annotated[int, Meta(ge=1, le=1024)] = 16
    num_blocks: Positive | None = None
    kv_gb: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    watermark: Annotated[float, Meta(ge=0, lt=1)] = 0.01
    prefix_cache: bool = True
    host_blocks: Annotated[int, Meta(ge=0)] = 0
    preemption: Literal["recompute", "swap", "auto"] = "recompute"
    link_gb_per_s: Annotated[float, Meta(gt=0)] | None = None
    prefill_tokens_per_s: Annotated[float, Meta(gt=0)] | None = None
    policy: Literal["fcfs", "priority", "fair"] = "fcfs"
    aging_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    max_partial_prefills: Positive | None = None
    check_every_step: bool = False
    max_context: Positive | None = None
    max_batch: Positive = 64
    token_budget: Positive = 256
    max_queue: Positive = 1024
    max_queue_tokens: Positive = 1 << 20
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    drain_s: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    api_keys: Path | None = None
    api_key: tuple[str, ...] = ()
    guard_metrics: bool = False
    cors_origin: tuple[str, ...] = ()
    record: Path | None = None
    record_tokens: bool = False

    @classmethod
    def checked(cls, **flags: Any) -> Self:
        """The options, checked.

        Raises:
            ConfigError: one is out of range; the message names its flag.
        """
        paths = {name: flags.pop(name) for name in ("model", "record", "api_keys")}
        options = checked(flags, cls)
        if options.token_budget < options.max_batch:
            raise ConfigError(
                f"--token-budget ({options.token_budget}) must be at least --max-batch ({options.max_batch}), "
                "so that every running sequence can decode in each step"
            )
        if options.preemption != "recompute" and not options.host_blocks:
            raise ConfigError(f"--preemption {options.preemption} needs --host-blocks to swap to")
        if options.preemption == "auto" and not (
            options.link_gb_per_s and options.prefill_tokens_per_s
        ):
            raise ConfigError(
                "--preemption auto compares costs: it needs --link-gb-per-s and --prefill-tokens-per-s"
            )
        return msgspec.structs.replace(options, **paths)


def serve_model(options: ServeOptions) -> None:
    """Serves until SIGTERM or SIGINT. SIGHUP reads a key file again; without one it is a SIGTERM.

    Raises:
        ConfigError: the port is taken, the model cannot be loaded, or the pool does not fit.
        ServeError: the engine failed.
    """
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("kilburn.requests").setLevel(logging.INFO)
    check_outputs(options.record)
    console = Console(stderr=True, highlight=False)
    gateway = gateway_config_of(options)
    tenants = _tenants(options)
    if options.guard_metrics and not tenants.guarded:
        raise ConfigError(
            f"--guard-metrics changes nothing without keys: give --api-keys, --api-key or {VARIABLE}"
        )
    for useless in _useless_terms(tenants, options):
        console.print(f"[yellow]note[/yellow]: {useless}", soft_wrap=True)
    with ExitStack() as held:
        listener = bind(gateway)
        held.callback(listener.close)
        model = _load(options, console)
        runner = _runner(model, options)
        held.callback(runner.close)
        config = _core_config(options, model, runner)
        codec = Codec(model.tokenizer)
        recorder = None
        if options.record is not None:
            recorder = RecordingWriter(
                options.record, config=config, model=model.name, record_tokens=options.record_tokens
            )
            held.callback(recorder.close)
        engine = Engine(
            runner,
            config,
            codec,
            model_name=model.name,
            recorder=recorder,
            check_every_step=options.check_every_step,
            max_queue_requests=options.max_queue,
            max_queue_tokens=options.max_queue_tokens,
        )
        served = Served(engine, codec, ChatTemplate(codec, model.tokenizer.chat_template), tenants)
        ready = _ready(console, url_of(listener), model, runner)
        load = partial(_tenants, options)
        on_hangup = None if options.api_keys is None else partial(reread, tenants, load)
        run(serve, gateway, served, listener, ready, on_hangup)


def _tenants(options: ServeOptions) -> Tenants:
    return load_tenants(options.api_keys, os.environ.get(VARIABLE, ""), options.api_key)


def gateway_config_of(options: ServeOptions) -> GatewayConfig:
    """The edge's settings.

    Raises:
        ConfigError: an origin is none.
    """
    settings = {
        "host": options.host,
        "port": options.port,
        "drain_s": options.drain_s,
        "guard_metrics": options.guard_metrics,
        "cors_origins": options.cors_origin,
    }
    try:
        return msgspec.convert(settings, GatewayConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--cors-origin: {error}") from None


def _useless_terms(tenants: Tenants, options: ServeOptions) -> Iterator[str]:
    """What is said of tenants that this server will not look at."""
    for tenant in tenants.all:
        if tenant.weight != 1.0 and options.policy != "fair":
            yield f"the weight of `{tenant.name}` says nothing under --policy {options.policy}; use --policy fair"
        if tenant.priority != 0 and options.policy == "fcfs":
            yield f"the priority of `{tenant.name}` says nothing under --policy fcfs; use --policy priority or fair"


def _core_config(options: ServeOptions, model: LoadedModel, runner: TorchRunner) -> CoreConfig:
    costs = None
    if options.link_gb_per_s and options.prefill_tokens_per_s:
        itemsize = 2 if model.dtype == "bfloat16" else 4
        costs = SwapCosts(
            block_bytes=runner.block_size * model.shape.kv_bytes_per_token(itemsize),
            link_bytes_per_s=options.link_gb_per_s * 1e9,
            prefill_tokens_per_s=options.prefill_tokens_per_s,
        )
    return CoreConfig(
        memory=MemoryConfig(
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            watermark=options.watermark,
            prefix_cache=options.prefix_cache,
            host_blocks=options.host_blocks,
        ),
        scheduler=SchedulerConfig(
            max_context=runner.max_context,
            token_budget=options.token_budget,
            max_batch=options.max_batch,
            max_partial_prefills=options.max_partial_prefills,
            policy=options.policy,
            aging_ns=round(options.aging_s * 1e9),
            preemption=options.preemption,
            swap_costs=costs,
        ),
    )


def _load(options: ServeOptions, console: Console) -> LoadedModel:
    suited: DtypeName = default_dtype() if options.device == "cpu" else "bfloat16"
    dtype: DtypeName = suited if options.dtype == "auto" else options.dtype
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        return load_model(options.model, dtype, progress)


def _runner(model: LoadedModel, options: ServeOptions) -> TorchRunner:
    return build_runner(
        model,
        num_blocks=options.num_blocks,
        block_size=options.block_size,
        pool_bytes=None if options.kv_gb is None else int(options.kv_gb * 1e9),
        max_context=options.max_context,
        max_batch=options.max_batch,
        host_blocks=options.host_blocks,
        threads=options.threads,
        device=options.device,
        step_tokens=options.token_budget,
    )


def _ready(
    console: Console, url: str, model: LoadedModel, runner: TorchRunner
) -> Callable[[], None]:
    tokens = runner.num_blocks * runner.block_size

    def say() -> None:
        console.print(
            f"[bold]Kilburn[/bold] serves {model.name} ({model.dtype}) at [bold]{url}[/bold]; "
            f"KV pool of {runner.num_blocks:,} blocks of {runner.block_size}, {tokens:,} tokens. Ctrl-C stops it."
        )

    return say
