"""The figures of a replay from its run: one place where a run's counters, levels and requests become the report."""

from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.config import config_hash
from sim.hindsight import hindsight, totals_of
from sim.judge import judge_ledger
from sim.ledger import Ledger, State
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
from sim.twin import Run
from traces.formats import Trace
from traces.shaping import hash_block_tokens
from traces.slo import Slo
from traces.stats import SHARES, quantiles, spread


def summarise(trace: Trace, run: Run, resolved: Resolved, slo: Slo | None = None) -> ReplayReport:
    """What `run`, which has replayed `trace` to its end and met at least one request, is reported as; with `slo` each request is judged."""
    ledger, end_ns = run.ledger, run.replicas[0].timeline.end_ns
    latencies = ledger.latencies()
    block_tokens = hash_block_tokens(trace, resolved.settings.shaping)
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
        goodput=judge_ledger(ledger, end_ns).goodput(slo, end_ns / 1e9)
        if slo is not None
        else None,
        cost=_cost(_throughput(run), resolved),
        biases=biases(resolved, trace.format, block_tokens),
    )
    return replace(report, findings=findings(report))


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
