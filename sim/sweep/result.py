"""What a sweep found, as data: the shape of its JSON, and rows of its CSV and table. Computes nothing but picks."""

import csv
import io
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from sim.report.figures import ReplayReport
from sim.sweep.axes import Axis, show
from traces.slo import Metric, Slo

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
GOOD: Final = "good_per_s"
"""Requests a second that keep every limit at once."""
GOOD_SHARE: Final = "good_share"
"""Their share of the requests whose outcome is known."""


class SweepPoint(Struct, frozen=True, kw_only=True):
    """One point: its place on the axes, and its figures or why there are none."""

    settings: dict[str, Any]
    """Value on each axis."""
    key: str | None
    """Name of its file among the points; null where the settings do not go together."""
    config_sha256: str | None
    figures: dict[str, float | int | None] | None
    meets: bool | None = None
    """Whether every promise is kept; null without promises or figures, or where of no request it is known."""
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
    """Promises that each request is judged against, where there are any."""
    points: list[SweepPoint]
    assumptions: list[str] = []
    """What the figures leave out, in sentences."""
    assumed: dict[str, list[Any]] = {}
    """Every setting, shape, constant and price by its path, as resolved, with the values that it has among the points: one where all agree."""


def figures_of(report: ReplayReport) -> dict[str, float | int | None]:
    """The figures of a table; where requests were judged, also how many a second kept every limit at once, and each by itself."""
    figures = {name: pick(report) for name, pick in FIGURES.items()}
    if (kept := report.goodput) is not None:
        seconds = report.throughput.simulated_s
        figures[GOOD] = kept.good_per_s
        figures[GOOD_SHARE] = kept.good_share
        for metric, count in kept.within.items():
            figures[good(metric)] = count / seconds if seconds else 0.0
    return figures


def goods_of(slo: Slo | None) -> list[str]:
    """Names of the figures that limits bring."""
    return [GOOD, GOOD_SHARE, *map(good, slo.metrics)] if slo is not None else []


def good(metric: Metric) -> str:
    """Name of the figure: requests a second whose `metric` is within its limit, whatever their others are."""
    return f"good_{metric}_per_s"


def to_csv(result: SweepResult) -> bytes:
    """A line for each point: its place, its figures, its error."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [axis.name for axis in result.axes]
    shown = [*FIGURES, *goods_of(result.slo)]
    verdict = ["meets"] if result.slo is not None else []
    writer.writerow([*names, *shown, *verdict, "error"])
    for point in result.points:
        figures = point.figures or {}
        cells = [figures.get(name) for name in shown]
        told = ["" if point.meets is None else str(point.meets).lower() for _ in verdict]
        place = [show(point.settings[name]) for name in names]
        writer.writerow([*place, *cells, *told, point.error or ""])
    return text.getvalue().encode()
