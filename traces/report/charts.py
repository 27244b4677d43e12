"""Charts as markup: drawing, axes and direct labels in HTML, and the values that the page's script reads under the pointer.

Everything is drawn here, so a page without script, and paper, show the same; the script only moves the pointer.
"""

from html import escape
from typing import Final

from traces.report import numbers, svg
from traces.report.document import Chart, Charts, Line, OverTime, Strip
from traces.report.labels import place_labels
from traces.report.scale import (
    Axis,
    Format,
    Tick,
    amount_axis,
    log_axis,
    minute_ticks,
    minutes_axis,
    time_ticks,
)

DIGITS: Final = 5
"""Significant digits of values that the script shows."""

_MINUTES_FROM: Final = 240_000.0
"""Milliseconds from which an axis counts minutes or hours."""

Data = dict[str, object]
"""What a part gives the script."""


def over_time(part: OverTime) -> tuple[str, Data]:
    """Markup and data of strips over a common time axis."""
    end = part.end_s[-1]
    ticks = time_ticks(end)
    strips = "".join(_strip(strip, part.end_s, ticks) for strip in part.strips)
    names = escape(", ".join(strip.title for strip in part.strips))
    label = f"{names} over time. Arrow keys move the pointer, Escape takes it away."
    markup = (
        f'<div class="overtime" id="{part.name}" tabindex="0" role="group" aria-label="{label}">{strips}'
        f'<div class="strip axis"><div class="plot">{_x_ticks(ticks)}<span class="now"></span></div></div>'
        f'<p class="say" aria-live="polite"></p></div>'
    )
    data: Data = {
        "kind": "time",
        "x": [_short(value) for value in part.end_s],
        "lines": [
            {
                "values": [_short(v) for v in line.values],
                "unit": "%" if strip.share else strip.unit,
                "label": line.label,
            }
            for strip in part.strips
            for line in strip.lines
        ],
    }
    return markup, data


def _strip(strip: Strip, end_s: list[float], ticks: list[Tick]) -> str:
    axis = _strip_axis(strip)
    text: Format = numbers.percent if strip.share else _compact
    y_ticks = [Tick(0.0, text(0.0)), Tick(1.0, text(axis.end))]
    look = "grid over" if strip.stacked else "grid"
    grid = svg.gridlines([t.place for t in ticks], [0.5], look)
    shapes = [] if strip.stacked else [grid]
    if strip.stacked:
        upper = [sum(values) for values in zip(*(line.values for line in strip.lines), strict=True)]
        for line in strip.lines:
            lower = [total - value for total, value in zip(upper, line.values, strict=True)]
            shapes.append(svg.band(end_s, upper, lower, axis, line.look))
            upper = lower
        shapes.append(grid)
    else:
        shapes += [svg.area(end_s, line.values, axis, line.look + " faint") for line in strip.lines]
        shapes += [svg.stepped(end_s, line.values, axis, line.look) for line in strip.lines]
    said = "; ".join(
        f"{line.label}: mean {_read(_mean(line, end_s), strip)}, at most {_read(max(line.values), strip)}"
        for line in strip.lines
    )
    unit = "" if strip.share else f" <span>{escape(strip.unit)}</span>"
    return (
        f'<figure class="strip{" stacked" if strip.stacked else ""}"><figcaption>{escape(strip.title)}{unit}'
        f"</figcaption>{_y_ticks(y_ticks)}"
        f'<div class="plot">{svg.drawing("".join(shapes), escape(f"{strip.title}. {said}"))}<i class="cross"></i></div>'
        f'<dl class="readout">{"".join(_reading(line, end_s, strip) for line in strip.lines)}</dl></figure>'
    )


def _strip_axis(strip: Strip) -> Axis:
    if strip.top is not None:
        return Axis(0.0, strip.top)
    if strip.share:
        return Axis(0.0, 1.0)
    return amount_axis([v for line in strip.lines for v in line.values])


def _reading(line: Line, end_s: list[float], strip: Strip) -> str:
    rest = line.rest or f"mean {_read(_mean(line, end_s), strip)}"
    return (
        f'<div><dt><i class="key {line.look}"></i>{escape(line.label)}</dt>'
        f'<dd data-rest="{escape(rest)}">{escape(rest)}</dd></div>'
    )


def _mean(line: Line, end_s: list[float]) -> float:
    starts = [0.0, *end_s[:-1]]
    weighted = (v * (e - s) for v, s, e in zip(line.values, starts, end_s, strict=True))
    return sum(weighted) / end_s[-1]


def _read(value: float, strip: Strip) -> str:
    return numbers.percent(value) if strip.share else numbers.amount(value)


def _compact(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def charts(part: Charts) -> tuple[str, Data]:
    """Markup and data of charts beside each other."""
    drawn = [_chart(chart) for chart in part.charts]
    names = escape(", ".join(chart.title for chart in part.charts))
    label = f"{names}. Arrow keys move the pointer, Escape takes it away."
    markup = (
        f'<div class="charts" id="{part.name}" tabindex="0" role="group" aria-label="{label}">'
        f'{"".join(drawn)}<p class="say" aria-live="polite"></p></div>'
    )
    return markup, {
        "kind": "xy",
        "byY": part.by_y,
        "charts": [_chart_data(chart) for chart in part.charts],
    }


def chart_axes(chart: Chart) -> tuple[Axis, Axis]:
    """The axes that a chart needs."""
    xs = [x for curve in chart.curves for x in curve.x] + [m.x for m in chart.marks if m.x]
    ys = [y for curve in chart.curves for y in curve.y] + [m.y for m in chart.marks if m.y]
    if chart.x_names:
        x = Axis(-0.5, len(chart.x_names) - 0.5)
    elif chart.log_x:
        x = log_axis(xs)
    elif chart.x_zero:
        x = amount_axis(xs, 1e-9)
    else:
        low, high = min(xs, default=0.0), max(xs, default=1.0)
        x = Axis(low, high if high > low else low + 1.0)
    if chart.y_share:
        return x, Axis(0.0, 1.0)
    return x, minutes_axis(ys) if _in_minutes(chart, ys) else amount_axis(ys, 1e-9)


def _in_minutes(chart: Chart, ys: list[float]) -> bool:
    return chart.y_unit == "ms" and max(ys, default=0.0) >= _MINUTES_FROM


def _chart(chart: Chart) -> str:
    x, y = chart_axes(chart)
    x_text: Format = numbers.ms if chart.x_unit == "ms" else _compact
    y_text: Format = numbers.percent if chart.y_share else _compact
    if chart.y_unit == "ms":
        y_text = numbers.ms
    x_ticks, y_ticks = x.ticks(5, x_text), y.ticks(4, y_text)
    if chart.y_unit == "ms" and y.end >= _MINUTES_FROM:
        y_ticks = minute_ticks(y)
    if chart.x_names:
        every = -(-len(chart.x_names) // 8)
        named = list(enumerate(chart.x_names))[::every]
        x_ticks = [Tick(x.place(float(at)), name) for at, name in named]
    shapes = [svg.gridlines([t.place for t in x_ticks], [t.place for t in y_ticks])]
    shapes += [svg.curve(c.x, c.y, x, y, c.look) for c in chart.curves if c.joined]
    spots = [*_marked(chart, x, y), *_dots(chart, x, y)]
    keys = "".join(
        f'<div><dt><i class="key line {curve.look}"></i>{escape(curve.label)}</dt><dd data-rest=""></dd></div>'
        for curve in chart.curves
    )
    unit = f" <span>{escape(chart.y_title)}</span>" if chart.y_title else ""
    return (
        f'<figure class="chart"><figcaption>{escape(chart.title)}{unit}</figcaption>{_y_ticks(y_ticks)}'
        f'<div class="plot">{svg.drawing("".join(shapes), escape(_said(chart)))}{"".join(spots)}<i class="cross"></i>'
        f'<i class="dotcross"></i></div>'
        f'<div class="axis"><div class="plot">{_x_ticks(x_ticks)}</div></div>'
        f'<p class="xtitle">{escape(chart.x_title)}</p><dl class="readout">{keys}</dl></figure>'
    )


def _marked(chart: Chart, x: Axis, y: Axis) -> list[str]:
    """Marks with their texts where there is room."""
    points = [
        (mark, (x.place(mark.x), 1 - y.place(mark.y)))
        for mark in chart.marks
        if mark.x is not None and mark.y is not None
    ]
    levels = [(m, 1 - y.place(m.y)) for m in chart.marks if m.x is None and m.y is not None]
    curves = [
        [(x.place(a), 1 - y.place(b)) for a, b in zip(c.x, c.y, strict=True)] for c in chart.curves
    ]
    joined = [corners for c, corners in zip(chart.curves, curves, strict=True) if c.joined]
    dots = [at for c, corners in zip(chart.curves, curves, strict=True) if c.dots for at in corners]
    found = place_labels(
        [(mark.text, at) for mark, at in points],
        [(mark.text, at) for mark, at in levels],
        joined,
        [*(at for _, at in points), *dots],
    )
    spots = []
    for (mark, (left, top)), side, on_paper in zip(
        points, found.points, found.on_paper, strict=True
    ):
        look = f"{side}{'' if on_paper else ' screen'}"
        text = f'<span class="{look}">{escape(mark.text)}</span>' if side is not None else ""
        spots.append(
            f'<b class="spot {mark.look}" style="left:{100 * left:.2f}%;top:{100 * top:.2f}%"><i></i>{text}</b>'
        )
    spots += [
        f'<b class="limit" style="top:{100 * top:.2f}%"><span class="{side}">{escape(mark.text)}</span></b>'
        for (mark, top), side in zip(levels, found.limits, strict=True)
    ]
    spots += [
        f'<b class="limit upright" style="left:{100 * x.place(mark.x):.2f}%"><span>{escape(mark.text)}</span></b>'
        for mark in chart.marks
        if mark.x is not None and mark.y is None
    ]
    return spots


def _dots(chart: Chart, x: Axis, y: Axis) -> list[str]:
    return [
        f'<b class="spot {curve.look}" style="left:{100 * x.place(a):.2f}%;top:{100 * (1 - y.place(b)):.2f}%"><i></i></b>'
        for curve in chart.curves
        if curve.dots
        for a, b in zip(curve.x, curve.y, strict=True)
    ]


def _said(chart: Chart) -> str:
    marks = "; ".join(mark.text for mark in chart.marks)
    return f"{chart.title}: {chart.y_title} against {chart.x_title}. {marks}"


def _chart_data(chart: Chart) -> Data:
    x, y = chart_axes(chart)
    return {
        "x": [x.start, x.end, int(x.log)],
        "y": [y.start, y.end],
        "xUnit": chart.x_unit,
        "yUnit": "%" if chart.y_share else chart.y_unit,
        "xNames": chart.x_names,
        "curves": [
            {"label": c.label, "x": [_short(v) for v in c.x], "y": [_short(v) for v in c.y]}
            for c in chart.curves
        ],
    }


def _x_ticks(ticks: list[Tick]) -> str:
    return "".join(
        f'<span style="left:{100 * t.place:.2f}%"{_edge(t.place)}>{escape(t.text)}</span>'
        for t in ticks
    )


def _edge(place: float) -> str:
    return ' class="first"' if place < 0.01 else ' class="last"' if place > 0.96 else ""


def _y_ticks(ticks: list[Tick]) -> str:
    marks = "".join(
        f'<span style="top:{100 * (1 - t.place):.1f}%">{escape(t.text)}</span>' for t in ticks
    )
    return f'<div class="yticks" aria-hidden="true">{marks}</div>'


def _short(value: float) -> float:
    """With the digits that are worth carrying."""
    return float(f"{value:.{DIGITS}g}")
