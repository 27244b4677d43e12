"""A replay from settings and a trace to a report: resolves names, sizes the pool, runs the twin, computes the figures.

Knows no flags and prints nothing.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig
from engine.core.errors import TraceError
from engine.core.scheduler import Scheduler
from sim.config import ReplayConfig, config_hash
from sim.hardware import find_hardware
from sim.ledger import Ledger, State
from sim.models import find_model
from sim.pool import pool_budget
from sim.report import (
    Batch,
    Counts,
    Memory,
    ReplayReport,
    Resolved,
    Series,
    Throughput,
    TraceSummary,
)
from sim.roofline import Efficiency, Roofline
from sim.timeline import Timeline
from sim.twin import Replica, run_twin
from traces.formats import Trace
from traces.schema import TraceRequest
from traces.shaping import shaped
from traces.stats import spread

Watch = Callable[[Iterable[TraceRequest]], Iterable[TraceRequest]]
"""Sees the requests as they are read, and passes them on."""


def resolve(config: ReplayConfig, hardware_file: Path | None = None) -> Resolved:
    """Names looked up, pool sized.

    Raises:
        ConfigError: an unknown model or hardware, or no room for the pool.
    """
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
        num_blocks=config.num_blocks,
        kv_gb=config.kv_gb,
    )
    return Resolved(
        settings=config,
        model=model,
        hardware=hardware,
        cost_model=Roofline.name,
        efficiency=Efficiency(),
        pool=pool,
        max_context=config.max_context or model.max_context,
    )


def core_config(resolved: Resolved) -> CoreConfig:
    """What the scheduler is built from; its log is off, decisions are the same."""
    settings = resolved.settings
    return CoreConfig(
        memory=MemoryConfig(
            num_blocks=resolved.pool.num_blocks,
            block_size=settings.block_size,
            watermark=settings.watermark,
        ),
        scheduler=SchedulerConfig(
            max_context=resolved.max_context,
            token_budget=settings.token_budget,
            max_batch=settings.max_batch,
            max_open_plans=settings.open_plans,
            log=False,
        ),
    )


def replay(trace: Trace, resolved: Resolved, watch: Watch | None = None) -> ReplayReport:
    """Replays the trace's requests and reports.

    Raises:
        TraceError: a bad row under the trace's `strict`, or no request in the whole trace.
        ConfigError: the trace needs arrivals, or a setting does not fit it.
    """
    settings = resolved.settings
    cost = Roofline(
        resolved.hardware, resolved.model, settings.dtype, settings.kv_dtype, resolved.efficiency
    )
    scheduler = Scheduler(core_config(resolved))
    requests: Iterable[TraceRequest] = shaped(trace, settings.shaping)
    if watch is not None:
        requests = watch(requests)
    until_ns = None if settings.until_s is None else round(settings.until_s * 1e9)
    replica, num_held_back = run_twin(requests, scheduler, cost, until_ns=until_ns)
    if not len(replica.ledger):
        first = trace.bad_rows[0] if trace.bad_rows else None
        if first is None:
            raise TraceError("the trace has no requests", file=trace.name)
        message = f"none of the trace's {sum(trace.bad_counts.values())} rows can be used: {first.message}"
        raise TraceError(message, file=trace.name, line=first.line)
    latencies = replica.ledger.latencies()
    return ReplayReport(
        config_sha256=config_hash(resolved),
        config=resolved,
        trace=_trace_summary(trace, replica.ledger),
        requests=_counts(replica.ledger, num_held_back),
        throughput=_throughput(replica),
        batch=_batch(replica, scheduler.num_preemptions),
        memory=_memory(replica, resolved),
        over_time=_series(replica.timeline, resolved),
        ttft_ms=spread(latencies.ttft_ms),
        tpot_ms=spread(latencies.tpot_ms),
        e2e_ms=spread(latencies.e2e_ms),
    )


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


def _throughput(replica: Replica) -> Throughput:
    end_ns = replica.timeline.end_ns
    busy_ns = replica.timeline.totals()[4]
    prompt_tokens = replica.ledger.done_prompt_tokens()

    def rate(count: int) -> float:
        return count * 1e9 / end_ns if end_ns else 0.0

    return Throughput(
        simulated_s=end_ns / 1e9,
        busy_share=busy_ns / end_ns if end_ns else 0.0,
        steps=replica.num_steps,
        prompt_tokens=prompt_tokens,
        output_tokens=replica.num_output_tokens,
        computed_tokens=replica.num_step_tokens,
        requests_per_s=rate(replica.ledger.count(State.DONE)),
        prompt_tokens_per_s=rate(prompt_tokens),
        output_tokens_per_s=rate(replica.num_output_tokens),
    )


def _batch(replica: Replica, preemptions: int) -> Batch:
    end_ns = max(1, replica.timeline.end_ns)
    _, _, running, waiting, _ = replica.timeline.totals()
    return Batch(
        max=replica.max_batch,
        mean_running=running / end_ns,
        mean_waiting=waiting / end_ns,
        preemptions=preemptions,
    )


def _memory(replica: Replica, resolved: Resolved) -> Memory:
    block_size, pool_blocks = resolved.settings.block_size, resolved.pool.num_blocks
    end_ns = max(1, replica.timeline.end_ns)
    held, used, *_ = replica.timeline.totals()
    allocated = held * block_size
    return Memory(
        block_size=block_size,
        pool_blocks=pool_blocks,
        pool_tokens=pool_blocks * block_size,
        peak_blocks=replica.max_held_blocks,
        mean_used_tokens=used / end_ns,
        mean_unused_tokens=(allocated - used) / end_ns,
        mean_free_tokens=pool_blocks * block_size - allocated / end_ns,
        used_share_of_allocated=used / allocated if allocated else None,
    )


def _series(timeline: Timeline, resolved: Resolved) -> Series:
    ends, (held, used, running, waiting, busy) = timeline.means()
    allocated = held * resolved.settings.block_size
    pool = resolved.pool.num_blocks * resolved.settings.block_size
    return Series(
        end_s=(ends / 1e9).tolist(),
        used_tokens=used.tolist(),
        unused_tokens=(allocated - used).tolist(),
        free_tokens=(pool - allocated).tolist(),
        running=running.tolist(),
        waiting=waiting.tolist(),
        busy=busy.tolist(),
    )
