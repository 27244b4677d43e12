"""Shapes of charts as SVG that stretches to any width: text stands beside it, in HTML. Knows scales; knows no page.

The drawing is `WIDTH` by `HEIGHT` units and strokes keep their width however it is stretched, so one drawing serves desktop, phone and paper.
"""

from collections.abc import Sequence
from typing import Final

from traces.report.scale import Axis

WIDTH: Final = 2000
HEIGHT: Final = 400


def _x(place: float) -> int:
    return round(place * WIDTH)


def _y(place: float) -> int:
    return round((1 - place) * HEIGHT)


def drawing(body: str, label: str = "") -> str:
    """The SVG element around shapes; `label` is for those who cannot see it and must be escaped."""
    role = f'role="img" aria-label="{label}"' if label else 'aria-hidden="true"'
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" {role}>{body}</svg>'


def steps(end_s: Sequence[float], values: Sequence[float], axis: Axis) -> str:
    """A path that holds each value over its bin."""
    whole = end_s[-1]
    path = [f"M0 {_y(axis.place(values[0]))}"]
    at = None
    for end, value in zip(end_s, values, strict=True):
        level = _y(axis.place(value))
        if level != at:
            path.append(f"V{level}")
            at = level
        path.append(f"H{_x(end / whole)}")
    return _merged(path)


def _merged(path: list[str]) -> str:
    """The path with runs of horizontal steps as one."""
    kept: list[str] = []
    for part in path:
        if part[0] == "H" and kept and kept[-1][0] == "H":
            kept[-1] = part
        else:
            kept.append(part)
    return "".join(kept)


def area(end_s: Sequence[float], upper: Sequence[float], axis: Axis, look: str) -> str:
    """What lies under a stepped line, down to 0."""
    path = f"{steps(end_s, upper, axis)}V{HEIGHT}H0Z"
    return f'<path class="area {look}" d="{path}"/>'


def band(
    end_s: Sequence[float], upper: Sequence[float], lower: Sequence[float], axis: Axis, look: str
) -> str:
    """What lies between two stepped lines."""
    whole = end_s[-1]
    back = []
    for i in range(len(end_s) - 1, -1, -1):
        start = end_s[i - 1] if i else 0.0
        back += [f"V{_y(axis.place(lower[i]))}", f"H{_x(start / whole)}"]
    return f'<path class="area {look}" d="{steps(end_s, upper, axis)}{_merged(_changing(back))}Z"/>'


def _changing(path: list[str]) -> list[str]:
    """The path without steps to the level that it is at."""
    kept: list[str] = []
    level = ""
    for part in path:
        if part[0] == "V":
            if part == level:
                continue
            level = part
        kept.append(part)
    return kept


def stepped(end_s: Sequence[float], values: Sequence[float], axis: Axis, look: str) -> str:
    """A stepped line."""
    return f'<path class="line {look}" d="{steps(end_s, values, axis)}"/>'


def curve(xs: Sequence[float], ys: Sequence[float], x: Axis, y: Axis, look: str) -> str:
    """A line through points."""
    points = [(_x(x.place(a)), _y(y.place(b))) for a, b in zip(xs, ys, strict=True)]
    path = "".join(f"{'L' if i else 'M'}{a} {b}" for i, (a, b) in enumerate(points))
    return f'<path class="line {look}" d="{path}"/>'


def gridlines(x_places: Sequence[float], y_places: Sequence[float], look: str = "grid") -> str:
    """Hairlines across the drawing."""
    path = "".join(f"M{_x(p)} 0V{HEIGHT}" for p in x_places)
    path += "".join(f"M0 {_y(p)}H{WIDTH}" for p in y_places)
    return f'<path class="{look}" d="{path}"/>'


def bars(parts: Sequence[tuple[float, str]]) -> str:
    """A small picture: shares of a whole, side by side; (share, look)."""
    shapes, at = [], 0.0
    for share, look in parts:
        left, right = _x(min(1.0, at)), _x(min(1.0, at + share))
        if right > left:
            shapes.append(
                f'<rect class="area {look}" x="{left}" y="0" width="{right - left}" height="{HEIGHT}"/>'
            )
        at += share
    return f'<span class="mini bar">{drawing("".join(shapes))}</span>'


def compared(rows: Sequence[tuple[str, float, str]]) -> str:
    """A small picture: amounts as bars under each other; (text, share of the longest, look). Texts must be escaped."""
    items = "".join(
        f'<span>{text}</span><i class="area {look}" style="width:{100 * max(0.004, min(1.0, share)):.1f}%"></i>'
        for text, share, look in rows
    )
    return f'<span class="mini compared">{items}</span>'


def spark(end_s: Sequence[float], values: Sequence[float], top: float, look: str) -> str:
    """A small picture: one series over time."""
    axis = Axis(0.0, top or 1.0)
    return f'<span class="mini spark">{drawing(area(end_s, values, axis, look))}</span>'


def dots(values: Sequence[tuple[str, float]]) -> str:
    """A small picture: values above 0 as dots on one logarithmic line; (text, value). Texts must be escaped."""
    above = [value for _, value in values if value > 0] or [1.0]
    axis = Axis(min(above) * 0.7, max(above) * 1.4, log=True)
    marks = "".join(
        f'<i style="left:{100 * axis.place(value):.1f}%"><b>{text}</b></i>'
        for text, value in values
    )
    return f'<span class="mini dots">{marks}</span>'
