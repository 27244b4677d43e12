"""What a sweep found, as data: the shape of its JSON, and rows of its CSV and table. Computes nothing but picks."""

import csv
import io
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from sim.report.figures import ReplayReport
from sim.slo import METRICS, Metric, Slo
from sim.sweep.axes import Axis, show

FIGURES: Final[dict[str, Callable[[ReplayReport], float | int | None]]] = {
    "bad_rows": lambda r: sum(r.trace.bad.values()),
    "submitted": lambda r: r.requests.submitted,
    "done": lambda r: r.requests.done,
    "rejected": lambda r: sum(r.requests.rejected.values()),
    "failed": lambda r: r.requests.failed,
    "unfinished": lambda r: r.requests.unfinished,
    "never_sent": lambda r: r.requests.never_sent,
    "offered_per_s": lambda r: r.requests.submitted / r.trace.span_s if r.trace.span_s else None,
    "requests_per_s": lambda r: r.throughput.requests_per_s,
    "output_tokens_per_s": lambda r: r.throughput.output_tokens_per_s,
    "prompt_tokens_per_s": lambda r: r.throughput.prompt_tokens_per_s,
    "busy_share": lambda r: r.throughput.busy_share,
    "ttft_p50_ms": lambda r: r.ttft_ms.p50,
    "ttft_p90_ms": lambda r: r.ttft_ms.p90,
    "ttft_p99_ms": lambda r: r.ttft_ms.p99,
    "tpot_p50_ms": lambda r: r.tpot_ms.p50,
    "tpot_p90_ms": lambda r: r.tpot_ms.p90,
    "tpot_p99_ms": lambda r: r.tpot_ms.p99,
    "e2e_p50_ms": lambda r: r.e2e_ms.p50,
    "e2e_p90_ms": lambda r: r.e2e_ms.p90,
    "e2e_p99_ms": lambda r: r.e2e_ms.p99,
    "mean_running": lambda r: r.batch.mean_running,
    "mean_waiting": lambda r: r.batch.mean_waiting,
    "preemptions": lambda r: r.batch.preemptions,
    "pool_blocks": lambda r: r.memory.pool_blocks,
    "peak_blocks": lambda r: r.memory.peak_blocks,
    "used_share_of_allocated": lambda r: r.memory.used_share_of_allocated,
    "prefix_hit_share": lambda r: r.memory.prefix_hit_share,
    "usd_per_hour": lambda r: r.cost.usd_per_hour if r.cost else None,
    "usd_per_million_output_tokens": lambda r: (
        r.cost.usd_per_million_output_tokens if r.cost else None
    ),
}
"""What a table says of each point; a point's own file has everything."""


class SweepPoint(Struct, frozen=True, kw_only=True):
    """One point: its place on the axes, and its figures or why there are none."""

    settings: dict[str, Any]
    """Value on each axis."""
    key: str | None
    """Name of its file among the points; null where the settings do not go together."""
    config_sha256: str | None
    figures: dict[str, float | int | None] | None
    error: str | None


class SweepResult(Struct, frozen=True, kw_only=True):
    """All points, in the order of the axes."""

    kind: str = "sweep"
    version: int = 1
    trace: str
    trace_sha256: str
    """Of the file's bytes."""
    base: dict[str, Any]
    """Settings of every point, beside the defaults."""
    axes: list[Axis]
    slo: Slo | None = None
    """Limits that requests are counted against, where there are any."""
    points: list[SweepPoint]
    assumptions: list[str] = []
    """What the figures leave out, in sentences."""
    assumed: dict[str, list[Any]] = {}
    """Every setting, shape, constant and price by its path, as resolved, with the values that it has among the points: one where all agree."""


def figures_of(report: ReplayReport, slo: Slo | None = None) -> dict[str, float | int | None]:
    """The figures of a table; with `slo` also, for each of its metrics, the requests a second that kept the limit."""
    figures = {name: pick(report) for name, pick in FIGURES.items()}
    for metric in limited(slo):
        limit_ns = slo.limit_ns(metric) if slo is not None else None
        assert limit_ns is not None
        values = getattr(report.distributions, f"{metric}_ms")
        share = share_within(report.distributions.share, values, limit_ns / 1e6)
        rate = report.throughput.requests_per_s
        figures[good(metric)] = None if share is None else rate * share
    return figures


def limited(slo: Slo | None) -> list[Metric]:
    """The metrics that have a limit."""
    return [m for m in METRICS if slo is not None and slo.limit_ns(m) is not None]


def good(metric: Metric) -> str:
    """Name of the figure: requests a second whose `metric` is within its limit."""
    return f"good_{metric}_per_s"


def share_within(shares: Sequence[float], values: Sequence[float], limit: float) -> float | None:
    """The share of a sample that is at most `limit`, from its quantiles: values[i] is what a share of shares[i] does not exceed."""
    if not values:
        return None
    below = bisect_right(values, limit)
    return shares[below - 1] if below else 0.0


def to_csv(result: SweepResult) -> bytes:
    """A line for each point: its place, its figures, its error."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [axis.name for axis in result.axes]
    shown = [*FIGURES, *map(good, limited(result.slo))]
    writer.writerow([*names, *shown, "error"])
    for point in result.points:
        figures = point.figures or {}
        cells = [figures.get(name) for name in shown]
        writer.writerow(
            [*(show(point.settings[name]) for name in names), *cells, point.error or ""]
        )
    return text.getvalue().encode()
