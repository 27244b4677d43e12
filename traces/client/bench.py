"""A run of the load client from settings to a report: finds the server out, warms it up, drives it, computes the figures. Prints nothing."""

import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import anyio
from msgspec.structs import replace

from engine.core.errors import TraceError
from traces.client.against import Other, lay_over
from traces.client.drive import Driver
from traces.client.figures import BenchReport, BenchSettings, BenchTrace, TargetFigures
from traces.client.findings import findings
from traces.client.measure import cached_prompts, counts, honesty, latencies, over_time, throughput
from traces.client.outcomes import Outcomes
from traces.client.promises import goodput_of
from traces.client.prompts import Prompts, Yardstick
from traces.client.target import Target, calibrate, server_name, warm_up
from traces.formats import Trace
from traces.schema import TraceRequest
from traces.shaping import hash_block_tokens, shaped
from traces.slo import Slo

REDRAW_S = 0.2
Watch = Callable[[Driver], None]
"""Looks at a run under way, a few times a second."""


class Bench(NamedTuple):
    """A run that is over."""

    report: BenchReport
    outcomes: Outcomes


def bench(
    target: Target,
    trace: Trace,
    settings: BenchSettings,
    *,
    tokens_per_word: float | None,
    against: Other | None,
    watch: Watch | None,
    slo: Slo | None = None,
) -> Bench:
    """Runs a trace against a server.

    Args:
        target: The server.
        trace: The workload.
        settings: How to send it.
        tokens_per_word: Of prompts; None: measured on the server.
        against: What to lay over the measurement.
        watch: Told of progress.
        slo: Promises that each request is judged by.

    Raises:
        ConfigError: the server does not answer, or counts no tokens.
        TraceError: a bad row under the trace's `strict`, or no request in it.
    """
    warm_up(target, settings.warm_up, settings.timeout_s)
    if tokens_per_word is None:
        yardstick = calibrate(target, settings.timeout_s)
    else:
        yardstick = Yardstick(per_word=tokens_per_word, offset=0.0, source="given")
    server = server_name(target, settings.timeout_s)
    shaping = settings.shaping
    prompts = Prompts(yardstick, hash_block_tokens(trace, shaping), shaping.seed)
    outcomes = Outcomes()
    driver = Driver(
        target, prompts, outcomes, timeout_s=settings.timeout_s, duration_s=settings.duration_s
    )
    rows = shaped(trace, shaping)
    try:
        anyio.run(_run, driver, rows, watch, backend_options={"use_uvloop": True})
    except ExceptionGroup as group:
        raise _cause(group) from None
    if not len(outcomes) and not driver.interrupted:
        first = trace.bad_rows[0] if trace.bad_rows else None
        if first is not None:
            raise TraceError(
                f"no row of the trace can be used: {first.message}",
                file=trace.name,
                line=first.line,
            )
        raise TraceError("the trace has no request to send", file=trace.name)
    report = _report(target, trace, settings, yardstick, server, driver, against, slo)
    return Bench(report, outcomes)


def _cause(group: ExceptionGroup) -> Exception:
    """The error in groups of one, else the group."""
    error: Exception = group
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _run(driver: Driver, rows: Iterable[TraceRequest], watch: Watch | None) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(_heed_interrupts, driver)
        if watch is not None:
            group.start_soon(_show, driver, watch)
        await driver.run(rows)
        group.cancel_scope.cancel()


async def _heed_interrupts(driver: Driver) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            driver.stop()


async def _show(driver: Driver, watch: Watch) -> None:
    while True:
        watch(driver)
        await anyio.sleep(REDRAW_S)


def _report(
    target: Target,
    trace: Trace,
    settings: BenchSettings,
    yardstick: Yardstick,
    server: str | None,
    driver: Driver,
    against: Other | None,
    slo: Slo | None,
) -> BenchReport:
    outcomes = driver.outcomes
    end_ns = driver.end_ns
    measured = latencies(outcomes)
    speed = throughput(outcomes, end_ns, driver.num_connections)
    counted = counts(outcomes, driver.never_sent, driver.interrupted, driver.said)
    kept = goodput_of(outcomes, counted, slo, end_ns) if slo is not None else None
    read = BenchTrace(
        name=Path(trace.name).name,
        format=trace.format,
        sha256=trace.digest,
        requests=trace.num_requests,
        bad=trace.bad_counts,
        bad_rows=trace.bad_rows,
    )
    over = None
    if against is not None:
        over = lay_over(against, measured, outcomes, speed, read, settings.shaping, kept)
    report = BenchReport(
        target=TargetFigures(
            url=target.url,
            model=target.model,
            server=server,
            tokens_per_word=yardstick.per_word,
            prompt_offset_tokens=yardstick.offset,
            measured_by=yardstick.source,
        ),
        settings=settings,
        trace=read,
        requests=counted,
        throughput=speed,
        honesty=honesty(outcomes),
        ttft_ms=measured.ttft,
        tpot_ms=measured.tpot,
        e2e_ms=measured.e2e,
        over_time=over_time(outcomes, end_ns),
        distributions=measured.distributions,
        against=over,
        goodput=kept,
        cached=cached_prompts(outcomes),
    )
    return replace(report, findings=findings(report))
