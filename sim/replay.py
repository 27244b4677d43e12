"""A replay from settings and a trace to a report: resolves names, sizes the pool, runs the twin, computes the figures.

Knows no flags and prints nothing.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from engine.core.allocator import Allocator
from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig, SwapCosts
from engine.core.errors import TraceError
from engine.core.scheduler import Scheduler
from sim.block_table import load_block_table
from sim.config import ReplayConfig, config_hash
from sim.contiguous import Contiguous
from sim.cost import CostModel, prefill_work
from sim.hardware import find_hardware
from sim.hindsight import hindsight, totals_of
from sim.ledger import Ledger, State
from sim.models import find_model
from sim.pool import pool_budget
from sim.pricing import load_source, make_cost
from sim.recorder import Recording, check_recording, recorded
from sim.report.biases import biases
from sim.report.figures import (
    Batch,
    Cost,
    Counts,
    Distributions,
    Lengths,
    Memory,
    ReplayReport,
    Resolved,
    Series,
    Throughput,
    TraceSummary,
)
from sim.report.findings import findings
from sim.roofline import Efficiency
from sim.router import make_router
from sim.twin import Fleet, Run, SwapPath, run_twin
from traces.formats import Trace
from traces.schema import TraceRequest
from traces.shaping import hash_block_tokens, shaped
from traces.stats import SHARES, quantiles, spread

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


def replay(trace: Trace, resolved: Resolved, watch: Watch | None = None) -> ReplayReport:
    """Replays the trace's requests and reports.

    Raises:
        TraceError: a bad row under the trace's `strict`, or no request in the whole trace.
        ConfigError: the trace needs arrivals, or a setting does not fit it.
    """
    return replay_in_full(trace, resolved, watch)[0]


def replay_in_full(
    trace: Trace,
    resolved: Resolved,
    watch: Watch | None = None,
    recording: Recording | None = None,
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
    ledger = run.ledger
    if not len(ledger):
        raise no_requests(trace)
    latencies = ledger.latencies()
    report = ReplayReport(
        config_sha256=config_hash(resolved),
        config=resolved,
        trace=_trace_summary(trace, ledger),
        requests=_counts(ledger, run.num_held_back),
        throughput=_throughput(run),
        batch=_batch(run),
        memory=_memory(run, resolved),
        over_time=_series(run, resolved),
        ttft_ms=spread(latencies.ttft_ms),
        tpot_ms=spread(latencies.tpot_ms),
        e2e_ms=spread(latencies.e2e_ms),
        distributions=Distributions(
            share=list(SHARES),
            ttft_ms=quantiles(latencies.ttft_ms),
            tpot_ms=quantiles(latencies.tpot_ms),
            e2e_ms=quantiles(latencies.e2e_ms),
        ),
        lengths=_lengths(ledger),
        cost=_cost(_throughput(run), resolved),
        biases=biases(resolved, trace.format, block_tokens),
    )
    return replace(report, findings=findings(report)), run


def _cost(speed: Throughput, resolved: Resolved) -> Cost | None:
    price = resolved.hardware.usd_per_hour
    if price is None:
        return None
    devices = resolved.settings.replicas * resolved.settings.tensor_parallel
    spent = price * devices * speed.simulated_s / 3600
    output = speed.output_tokens
    tokens = output + speed.prompt_tokens
    return Cost(
        usd_per_hour=price * devices,
        usd_per_million_output_tokens=1e6 * spent / output if output else None,
        usd_per_million_tokens=1e6 * spent / tokens if tokens else None,
        devices=devices,
        usd_per_device_hour=price,
        price_date=resolved.hardware.price_date,
        price_source=resolved.hardware.price_source,
    )


def _lengths(ledger: Ledger) -> Lengths:
    prompts, outputs = ledger.done_lengths()
    return Lengths(
        prompt_tokens=spread(prompts),
        output_tokens=spread(outputs),
        total_tokens=spread(prompts + outputs),
    )


def no_requests(trace: Trace) -> TraceError:
    """What is wrong with a trace, read to its end, that gave no request."""
    first = trace.bad_rows[0] if trace.bad_rows else None
    if first is None:
        return TraceError("the trace has no requests", file=trace.name)
    message = (
        f"none of the trace's {sum(trace.bad_counts.values())} rows can be used: {first.message}"
    )
    return TraceError(message, file=trace.name, line=first.line)


def _trace_summary(trace: Trace, ledger: Ledger) -> TraceSummary:
    first, last = ledger.arrival_ns[0], ledger.arrival_ns[-1]
    return TraceSummary(
        name=Path(trace.name).name,
        format=trace.format,
        sha256=trace.digest,
        rows=trace.num_requests + sum(trace.bad_counts.values()),
        requests=trace.num_requests,
        bad=trace.bad_counts,
        bad_rows=trace.bad_rows,
        first_arrival_s=first / 1e9,
        last_arrival_s=last / 1e9,
        span_s=(last - first) / 1e9,
    )


def _counts(ledger: Ledger, num_held_back: int) -> Counts:
    return Counts(
        submitted=len(ledger),
        done=ledger.count(State.DONE),
        rejected=ledger.rejections,
        failed=ledger.count(State.FAILED),
        unfinished=ledger.count(State.OPEN),
        never_sent=num_held_back,
    )


def _throughput(run: Run) -> Throughput:
    end_ns, replicas = run.replicas[0].timeline.end_ns, run.replicas
    prompt_tokens = run.ledger.done_prompt_tokens()
    output_tokens = sum(r.num_output_tokens for r in replicas)

    def rate(count: int) -> float:
        return count * 1e9 / end_ns if end_ns else 0.0

    return Throughput(
        simulated_s=end_ns / 1e9,
        busy_share=totals_of(run).busy / (end_ns * len(replicas)) if end_ns else 0.0,
        steps=sum(r.num_steps for r in replicas),
        plans=sum(r.num_plans for r in replicas),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        computed_tokens=sum(r.num_step_tokens for r in replicas),
        requests_per_s=rate(run.ledger.count(State.DONE)),
        prompt_tokens_per_s=rate(prompt_tokens),
        output_tokens_per_s=rate(output_tokens),
    )


def _batch(run: Run) -> Batch:
    preempted = [r.preempted_ns[0] for r in run.replicas if r.preempted_ns]
    end_ns = max(1, run.replicas[0].timeline.end_ns)
    totals = totals_of(run)
    return Batch(
        max=max(r.max_batch for r in run.replicas),
        mean_running=totals.running / end_ns,
        mean_waiting=totals.waiting / end_ns,
        preemptions=sum(r.scheduler.num_preemptions for r in run.replicas),
        first_preemption_s=min(preempted) / 1e9 if preempted else None,
        swaps=sum(r.scheduler.num_swaps for r in run.replicas),
        link_busy_share=(
            sum(link.busy_ns for link in run.links) / (2 * end_ns * len(run.links))
            if run.links
            else None
        ),
    )


def _memory(run: Run, resolved: Resolved) -> Memory:
    settings, pool_blocks = resolved.settings, resolved.pool.num_blocks
    block_size = settings.block_size
    pool_tokens = pool_blocks * block_size * len(run.replicas)
    end_ns = max(1, run.replicas[0].timeline.end_ns)
    totals = totals_of(run)
    allocated = totals.held_blocks * block_size
    cached = totals.cached_blocks * block_size
    queries = sum(r.scheduler.prefix_queries_tokens for r in run.replicas)
    hits = sum(r.scheduler.prefix_hits_tokens for r in run.replicas)
    peak = max(range(len(run.replicas)), key=lambda i: run.replicas[i].max_held_blocks)
    return Memory(
        block_size=block_size,
        pool_blocks=pool_blocks,
        pool_tokens=pool_tokens,
        peak_blocks=run.replicas[peak].max_held_blocks,
        peak_s=run.replicas[peak].peak_ns / 1e9,
        peak_replica=peak,
        mean_used_tokens=totals.used_tokens / end_ns,
        mean_unused_tokens=(allocated - totals.used_tokens) / end_ns,
        mean_cached_tokens=cached / end_ns,
        mean_free_tokens=pool_tokens - (allocated + cached) / end_ns,
        used_share_of_allocated=totals.used_tokens / allocated if allocated else None,
        unused_tokens_per_sequence=(
            (allocated - totals.used_tokens) / totals.running
            if totals.running and settings.allocator == "paged"
            else None
        ),
        half_block_tokens=block_size / 2,
        hindsight=hindsight(run, resolved, totals),
        prefix_queries_tokens=queries,
        prefix_hits_tokens=hits,
        prefix_hit_share=hits / queries if queries else None,
    )


def _series(run: Run, resolved: Resolved) -> Series:
    parts = [r.timeline.means() for r in run.replicas]
    ends = parts[0][0]
    means = sum((values for _, values in parts[1:]), parts[0][1])
    held, cached, used, running, waiting, busy = means
    block_size = resolved.settings.block_size
    allocated, kept = held * block_size, cached * block_size
    pool = resolved.pool.num_blocks * block_size * len(parts)
    return Series(
        end_s=(ends / 1e9).tolist(),
        used_tokens=used.tolist(),
        unused_tokens=(allocated - used).tolist(),
        cached_tokens=kept.tolist(),
        free_tokens=(pool - allocated - kept).tolist(),
        running=running.tolist(),
        waiting=waiting.tolist(),
        busy=(busy / len(parts)).tolist(),
        preemptions=_binned(run, ends),
    )


def _binned(run: Run, ends: NDArray[np.int64]) -> list[int]:
    """Preemptions in each bin."""
    times = np.concatenate([np.frombuffer(r.preempted_ns, np.int64) for r in run.replicas])
    places = np.minimum(ends.searchsorted(times), max(0, len(ends) - 1))
    counts: list[int] = np.bincount(places, minlength=len(ends)).tolist()
    return counts
