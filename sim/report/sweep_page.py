"""A sweep as a document: findings with pictures, each axis against the figures, two axes as heat maps, goodput against rate, all points, all assumptions."""

from collections.abc import Sequence
from html import escape
from typing import Any, Final

from sim.report.figures import FindingText
from sim.sweep.axes import Axis, show
from sim.sweep.effects import along, crossed, figure_of, middles, strongest
from sim.sweep.findings import METRICS, Shown, findings, goods, points_text, shown_of
from sim.sweep.result import GOOD, GOOD_SHARE, SweepPoint, SweepResult
from traces.report import numbers, svg
from traces.report.document import (
    Chart,
    Charts,
    Column,
    Curve,
    Document,
    Fact,
    Facts,
    Finding,
    Heat,
    Heats,
    Part,
    Section,
    Table,
    Words,
)
from traces.report.promises import limits_text
from traces.report.scale import Axis as Scale

LOOKS: Final = ("first", "second", "third", "fourth")
MOST_ROWS: Final = 1000
_FAR: Final = 20
"""Values that are further apart than this ratio are shaded by their logarithms."""
_Y_TITLES: Final = {"ms": "", "%": "", "USD": "USD a million output tokens"}
_GROUPS: Final = {"settings": "Settings", "": "Derived", "model": "Model", "hardware": "Hardware", "pool": "KV pool", "efficiency": "Cost model"}  # fmt: skip


def document(result: SweepResult, files: list[str]) -> Document:
    """The page of a sweep; `files` hold the same figures."""
    axes = [axis for axis in result.axes if len(axis.values) > 1]
    shown = shown_of(result)
    sections = [_axis(result, axis, shown) for axis in axes] if shown else []
    sections += [s for s in (_heats(result, shown), _rates(result), _points(result)) if s]
    sections.append(_assumptions(result))
    swept = ", ".join(f"{a.name} ({len(a.values):,})" for a in result.axes) or "no axis"
    return Document(
        title=f"Sweep of {result.trace}",
        subtitle=f"{points_text(len(result.points))}: every combination of {swept}, each a replay of the trace",
        findings=[_finding(text, result) for text in findings(result)],
        sections=sections,
        footer=[f"The same figures: {', '.join(files)}", f"trace {result.trace_sha256}"],
    )


# -- findings ------------------------------------------------------------------------------------------------------


def _finding(text: FindingText, result: SweepResult) -> Finding:
    return Finding(
        figure=text.figure,
        sentence=text.sentence,
        source=text.source,
        warm=text.warm,
        picture=_picture(text.code, result),
    )


def _picture(code: str, result: SweepResult) -> str:
    points = result.points
    if code in ("failed", "lost"):
        wrong = sum(_is_wrong(point, code) for point in points) / len(points)
        return svg.bars([(wrong, "warm"), (1 - wrong, "used")])
    metric = next((m for m in (*METRICS, *goods(result)) if m.figure == code), None)
    if metric is None:
        return ""
    effects = strongest(result, code)
    axis = effects[0][1] if effects else None
    if axis is None or len(axis.values) > 8:
        return ""
    values = middles(result, axis, code)
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    return svg.compared(
        [
            (f"{escape(show(name))}: {escape(metric.text(value))}", (value or 0.0) / most, "used")
            for name, value in zip(axis.values, values, strict=True)
        ]
    )


def _is_wrong(point: SweepPoint, code: str) -> bool:
    if code == "failed":
        return point.error is not None
    names = ("rejected", "failed", "unfinished", "never_sent")
    return any(figure_of(point, name) for name in names)


# -- axes ----------------------------------------------------------------------------------------------------------


def _axis(result: SweepResult, axis: Axis, shown: Sequence[Shown]) -> Section:
    others = [other.name for other in result.axes if other is not axis and len(other.values) > 1]
    lead = f"Each figure against {axis.name}"
    lead += f", by {' and '.join(others)}." if others else "."
    charts = [c for c in (_axis_chart(result, axis, metric) for metric in shown) if c is not None]
    return Section(
        name=f"axis-{axis.name}",
        title=axis.name,
        lead=lead,
        parts=[Charts(name=f"charts-{axis.name}", charts=charts)],
    )


def _axis_chart(result: SweepResult, axis: Axis, metric: Shown) -> Chart | None:
    lines = along(result, axis, metric.figure)
    if not lines:
        return None
    curves = [
        Curve(
            label=line.label or metric.title,
            x=[float(at) for at in line.at],
            y=line.values,
            look=look,
            dots=True,
            joined=_is_number(axis),
        )
        for look, line in zip(LOOKS, lines, strict=False)
    ]
    return Chart(
        title=metric.title,
        x_title=axis.name,
        y_title=_Y_TITLES.get(metric.unit, metric.unit),
        y_unit="ms" if metric.unit == "ms" else "",
        y_share=metric.unit == "%",
        x_names=[show(value) for value in axis.values],
        curves=curves,
    )


def _heats(result: SweepResult, shown: Sequence[Shown]) -> Section | None:
    axes = [axis for axis in result.axes if len(axis.values) > 1]
    if len(axes) < 2 or not shown:
        return None
    known = [axis for _, axis in strongest(result, shown[0].figure) if axis in axes]
    first, second, *_ = [*known, *(axis for axis in axes if axis not in known)]
    rows, columns = sorted((first, second), key=lambda axis: len(axis.values), reverse=True)
    others = [axis.name for axis in axes if axis not in (first, second)]
    middle = f" Each cell is the middle of all values of {' and '.join(others)}." if others else ""
    return Section(
        name="two-axes",
        title=f"{rows.name} by {columns.name}",
        lead=f"The stronger the colour, the more. Choose a figure.{middle}",
        parts=[Heats(name="heats", heats=[_heat(result, rows, columns, m) for m in shown])],
    )


def _heat(result: SweepResult, rows: Axis, columns: Axis, metric: Shown) -> Heat:
    cells = crossed(result, rows, columns, metric.figure)
    known = [value for row in cells for value in row if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    axis = Scale(low, high, log=low > 0 and high > _FAR * low)

    def shade(value: float | None) -> float | None:
        if value is None:
            return None
        return round(0.06 + 0.94 * axis.place(value), 3) if high > low else 0.06

    return Heat(
        title=metric.title,
        text=f"{metric.title}: {metric.meaning}. {'More' if metric.more_is_better else 'Less'} is better.",
        row_name=rows.name,
        rows=[show(value) for value in rows.values],
        column_name=columns.name,
        columns=[show(value) for value in columns.values],
        cells=[[metric.text(value) for value in row] for row in cells],
        shades=[[shade(value) for value in row] for row in cells],
    )


# -- goodput, points, assumptions ----------------------------------------------------------------------------------


def _rates(result: SweepResult) -> Section | None:
    """Requests done, and done in time, against requests offered: where there is an axis that changes how many are offered."""
    axis = next(
        (a for a in result.axes if a.name in ("rate_scale", "arrivals", "time_scale")), None
    )
    if axis is None or len(axis.values) < 2:
        return None
    offered = middles(result, axis, "offered_per_s")
    figures = [("requests_per_s", "Done", "requests/s")]
    if result.slo is not None:
        figures.append((GOOD, limits_text(result.slo), "requests/s"))
        figures += [
            (shown.figure, shown.title.removesuffix(" / s"), shown.unit)
            for shown in goods(result)
            if shown.figure not in (GOOD, GOOD_SHARE)
        ]
    charts = []
    for figure, title, unit in figures:
        curves = []
        for look, line in zip(LOOKS, along(result, axis, figure), strict=False):
            pairs = [(offered[at], value) for at, value in zip(line.at, line.values, strict=True)]
            known = sorted((x, value) for x, value in pairs if x is not None)
            if known:
                x, y = [x for x, _ in known], [value for _, value in known]
                curves.append(Curve(label=line.label or title, x=x, y=y, look=look, dots=True))
        if curves:
            most = max(x for x in offered if x is not None)
            every = Curve(label="all offered", x=[0.0, most], y=[0.0, most], look="offered")
            charts.append(
                Chart(title=title, x_title="requests offered a second", y_title=unit, x_zero=True, curves=[*curves, every])
            )  # fmt: skip
    if not charts:
        return None
    more = (
        " Good are those that keep every limit at once."
        if result.slo is not None
        else " With --slo ttft_p99=2s those within the limit are drawn."
    )
    return Section(
        name="rate",
        title="Goodput",
        lead=f"How many requests a second are done as more are offered. On the thin line all are; below it they queue.{more}",
        parts=[Charts(name="goodput", charts=charts)],
    )


_COLUMNS: Final = (
    Shown("offered_per_s", "Offered / s", "requests that arrive a second", "", True),
    Shown("requests_per_s", "Done / s", "requests done a second", "", True),
    Shown("done", "Done", "requests", "", True),
    Shown("rejected", "Rejected", "requests that can never run", "", False),
    Shown("unfinished", "Unfinished", "open when the run was cut off", "", False),
    Shown("output_tokens_per_s", "Tokens / s", "output tokens", "", True),
    Shown("ttft_p50_ms", "TTFT p50", "time to first token, of half the requests at most", "ms", False),
    Shown("ttft_p99_ms", "TTFT p99", "time to first token, of 99 % of the requests at most", "ms", False),
    Shown("tpot_p50_ms", "TPOT p50", "mean time between tokens, of half the requests at most", "ms", False),
    Shown("tpot_p99_ms", "TPOT p99", "mean time between tokens, of 99 % of the requests at most", "ms", False),
    Shown("e2e_p99_ms", "End to end p99", "arrival to last token, of 99 % of the requests at most", "ms", False),
    Shown("preemptions", "Preemptions", "times that a running request had to give up its memory", "", False),
    Shown("busy_share", "Busy", "share of the time in which a step runs", "%", False),
    Shown("prefix_hit_share", "Prefix hits", "prompt tokens that were in the cache", "%", True),
    Shown("usd_per_hour", "USD / h", "of all devices", "USD", False),
    Shown("usd_per_million_output_tokens", "USD / M out", "for a million output tokens", "USD", False),
)  # fmt: skip


def _points(result: SweepResult) -> Section:
    columns = [
        column for column in _COLUMNS if any(figure_of(p, column.figure) for p in result.points)
    ]
    columns += goods(result)
    failed = any(point.error is not None for point in result.points)
    rows = [
        [
            *map(show, point.settings.values()),
            *(column.text(figure_of(point, column.figure)) for column in columns),
            *([_verdict(point)] if result.slo is not None else []),
            *([point.error or ""] if failed else []),
        ]
        for point in result.points[:MOST_ROWS]
    ]
    heads = [
        *(Column(title=axis.name, text=not _is_number(axis)) for axis in result.axes),
        *(Column(title=column.title, help=column.meaning) for column in columns),
        *([Column(title="Meets", help=f"whether it keeps {result.slo}", text=True)] if result.slo is not None else []),
        *([Column(title="Why not", text=True)] if failed else []),
    ]  # fmt: skip
    note = ""
    if len(result.points) > MOST_ROWS:
        note = f"The first {MOST_ROWS:,} of {len(result.points):,} points; all are in sweep.csv."
    table = Table(name="points-table", columns=heads, rows=rows, tools=True, note=note)
    return Section(
        name="points",
        title="Points",
        lead="Every combination. A press on a heading sorts; the pointer on it tells what it means.",
        parts=[table],
    )


def _verdict(point: SweepPoint) -> str:
    return numbers.NONE if point.meets is None else "yes" if point.meets else "no"


def _is_number(axis: Axis) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in axis.values)


def _assumptions(result: SweepResult) -> Section:
    groups: dict[str, list[Fact]] = {}
    swept = {axis.name for axis in result.axes}
    for path, values in result.assumed.items():
        group, _, name = path.rpartition(".")
        group = group.split(".")[0]
        said = _said(name, values)
        why = ""
        if len(values) > 1:
            why = "an axis" if name in swept else "follows from the axes"
        groups.setdefault(group, []).append(Fact(name=numbers.name(name), value=said, why=why))
    parts: list[Part] = [Words(lines=result.assumptions)] if result.assumptions else []
    parts += [
        Facts(title=_GROUPS.get(group, numbers.name(group).capitalize()), facts=facts)
        for group, facts in groups.items()
    ]
    trace = [Fact(name="file", value=result.trace), Fact(name="SHA-256", value=result.trace_sha256)]
    if result.slo is not None:
        trace.append(Fact(name="promised", value=str(result.slo)))
    parts.append(Facts(title="Trace", facts=trace))
    return Section(
        name="assumptions",
        title="Assumptions",
        lead="Everything that decides these figures beside the trace; where it differs from point to point, all of its values.",
        parts=parts,
    )


def _said(name: str, values: list[Any]) -> str:
    show_one = numbers.gib if name.endswith("_bytes") else numbers.plain
    return ", ".join(show_one(value) for value in values)
