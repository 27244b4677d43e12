"""A replay from settings and a trace to a report: resolves names, sizes the pool, runs the twin, computes the figures.

Knows no flags and prints nothing.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from engine.core.allocator import Allocator
from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig, SwapCosts
from engine.core.errors import TraceError
from engine.core.scheduler import Scheduler
from sim.block_table import load_block_table
from sim.config import ReplayConfig
from sim.contiguous import Contiguous
from sim.cost import CostModel, prefill_work
from sim.hardware import find_hardware
from sim.models import find_model
from sim.pool import pool_budget
from sim.pricing import load_source, make_cost
from sim.recorder import Recording, check_recording, recorded
from sim.report.figures import ReplayReport, Resolved
from sim.report.summary import summarise
from sim.roofline import Efficiency
from sim.router import make_router
from sim.twin import Fleet, Run, SwapPath, run_twin
from traces.formats import Trace
from traces.schema import TraceRequest
from traces.shaping import hash_block_tokens, shaped
from traces.slo import Slo

Watch = Callable[[Iterable[TraceRequest]], Iterable[TraceRequest]]
"""Sees the requests as they are read, and passes them on."""


def resolve(
    config: ReplayConfig, hardware_file: Path | None = None, block_table: Path | None = None
) -> Resolved:
    """Names looked up, pool sized.

    Raises:
        ConfigError: an unknown model or hardware, a file that cannot be used, or no room for the pool.
        TraceError: a recording to fit to that cannot be used.
    """
    source = load_source(config.cost)
    blocks = load_block_table(block_table)
    model = find_model(config.model)
    hardware = find_hardware(config.hardware, hardware_file)
    pool = pool_budget(
        hardware,
        model,
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        block_size=config.block_size,
        token_budget=config.token_budget,
        max_batch=config.max_batch,
        utilisation=config.utilisation,
        tensor_parallel=config.tensor_parallel,
        num_blocks=config.num_blocks,
        kv_gb=config.kv_gb,
    )
    return Resolved(
        settings=config,
        model=model,
        hardware=hardware,
        cost_model=source.name,
        fit=source.fit,
        table=source.table,
        efficiency=Efficiency(),
        block_efficiency=blocks.at(config.block_size),
        block_table=blocks.source,
        pool=pool,
        max_context=config.max_context or model.max_context,
    )


def core_config(resolved: Resolved, cost: CostModel) -> CoreConfig:
    """What the scheduler is built from; its log is off, decisions are the same. `cost` says what `auto` preemption weighs."""
    settings = resolved.settings
    budget = settings.token_budget
    prefill_ns = cost.step_ns(prefill_work(budget))
    return CoreConfig(
        memory=MemoryConfig(
            num_blocks=resolved.pool.num_blocks,
            block_size=settings.block_size,
            watermark=settings.watermark,
            prefix_cache=settings.prefix_cache and settings.allocator == "paged",
            host_blocks=int(settings.host_gb * 1e9) // resolved.pool.block_bytes,
        ),
        scheduler=SchedulerConfig(
            max_context=resolved.max_context,
            token_budget=settings.token_budget,
            max_batch=settings.max_batch,
            max_partial_prefills=settings.max_partial_prefills,
            batching=settings.batching,
            policy=settings.policy,
            preemption=settings.preemption,
            swap_costs=SwapCosts(
                block_bytes=resolved.pool.block_bytes,
                link_bytes_per_s=settings.link_gb_per_s * 1e9,
                prefill_tokens_per_s=budget * 1e9 / prefill_ns,
            ),
            max_open_plans=settings.open_plans,
            log=False,
        ),
    )


def simulate(
    requests: Iterable[TraceRequest],
    resolved: Resolved,
    hash_block_tokens: int,
    on_start: Callable[[Fleet], None] | None = None,
    until_ns: int | None = None,
    recording: Recording | None = None,
) -> Run:
    """Runs requests, as they are, through the machine: what `replay` reports on.

    Args:
        requests: In arrival order.
        resolved: The machine.
        hash_block_tokens: What their hash ids cover; 0 where there are none.
        on_start: Sees the fleet before the clock runs.
        until_ns: Stop there, instead of where the settings say.
        recording: Where one replica's calls go; it takes its steps one by one then.

    Raises:
        ConfigError: the recording cannot be written, or there is nothing such to record.
        TraceError: from `requests`.
    """
    settings = resolved.settings
    cost = make_cost(resolved)
    swap = None
    if settings.host_gb:
        bandwidth = settings.link_gb_per_s * 1e9
        swap = SwapPath(resolved.pool.block_bytes, bandwidth, settings.replicas_per_link)
    core = core_config(resolved, cost)
    if until_ns is None and settings.until_s is not None:
        until_ns = round(settings.until_s * 1e9)
    schedulers = [Scheduler(core, memory_of(resolved)) for _ in range(settings.replicas)]
    with ExitStack() as stack:
        if recording is not None:
            check_recording(recording, settings)
            model = f"{resolved.model.name}, simulated on {resolved.hardware.name}"
            schedulers[recording.replica] = stack.enter_context(
                recorded(recording.path, core, model, hash_block_tokens)
            )
        return run_twin(
            requests,
            schedulers,
            cost,
            router=make_router(settings.router),
            num_sequences=settings.beam_width or settings.num_sequences,
            beam_seed=settings.shaping.seed if settings.beam_width is not None else None,
            hash_block_tokens=hash_block_tokens,
            swap=swap,
            until_ns=until_ns,
            on_start=on_start,
        )


def memory_of(resolved: Resolved) -> Allocator | None:
    """An allocator to compare with; None for the engine's own."""
    settings = resolved.settings
    if settings.allocator == "paged":
        return None
    return Contiguous(
        settings.allocator, resolved.pool.num_blocks, settings.block_size, resolved.max_context
    )


def replay(
    trace: Trace, resolved: Resolved, watch: Watch | None = None, slo: Slo | None = None
) -> ReplayReport:
    """Replays the trace's requests and reports; with `slo` also on which of them keep it.

    Raises:
        TraceError: a bad row under the trace's `strict`, or no request in the whole trace.
        ConfigError: the trace needs arrivals, or a setting does not fit it.
    """
    return replay_in_full(trace, resolved, watch, slo=slo)[0]


def replay_in_full(
    trace: Trace,
    resolved: Resolved,
    watch: Watch | None = None,
    recording: Recording | None = None,
    slo: Slo | None = None,
) -> tuple[ReplayReport, Run]:
    """As `replay`, and the run itself, for whoever looks at single requests; on the way it is recorded where asked for.

    Raises:
        TraceError: as `replay`.
        ConfigError: as `replay`.
    """
    settings = resolved.settings
    requests: Iterable[TraceRequest] = shaped(trace, settings.shaping)
    if watch is not None:
        requests = watch(requests)
    block_tokens = hash_block_tokens(trace, settings.shaping)
    run = simulate(requests, resolved, block_tokens, recording=recording)
    if not len(run.ledger):
        raise no_requests(trace)
    return summarise(trace, run, resolved, slo), run


def no_requests(trace: Trace) -> TraceError:
    """What is wrong with a trace, read to its end, that gave no request."""
    first = trace.bad_rows[0] if trace.bad_rows else None
    if first is None:
        return TraceError("the trace has no requests", file=trace.name)
    message = (
        f"none of the trace's {sum(trace.bad_counts.values())} rows can be used: {first.message}"
    )
    return TraceError(message, file=trace.name, line=first.line)
