"""A sweep for a terminal: a row for each point, and why points failed. Knows the result and nothing of how it came about."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sim.sweep.axes import show
from sim.sweep.result import GOOD, GOOD_SHARE, SweepPoint, SweepResult

Figure = float | int | None
SHOWN_FAILURES: Final = 10
WIDE: Final = 110
"""From so many columns on a terminal shows medians too."""
_LEGIBLE: Final = 16
"""So much of a setting's column is never given up."""
_GAP: Final = 2
"""Between columns."""


def show_ms(value: Figure) -> str:
    """Three digits of milliseconds, or from a second on of seconds; of less than is shown so, the first digit."""
    if value is None:
        return "-"
    if 0 < value < 0.05:
        return f"{value:.1g} ms"
    if value < 1000:
        return f"{value:.{0 if value >= 100 else 1}f} ms"
    return f"{value / 1e3:,.{0 if value >= 1e5 else 1 if value >= 1e4 else 2}f} s"


def _count(value: Figure) -> str:
    return "-" if value is None else f"{value:,}"


def _rate(value: Figure) -> str:
    return "-" if value is None else f"{value:,.{0 if value >= 100 else 1}f}"


def _share(value: Figure) -> str:
    return "-" if value is None else f"{value:.1%}"


class _Column(NamedTuple):
    title: str
    figure: str
    shown: Callable[[Figure], str]
    is_wide: bool = False
    """Only where there is room."""
    is_rare: bool = False
    """Only where it is above 0 somewhere."""
    yields: bool = False
    """Makes room for the columns of limits."""


_COLUMNS: Final = (
    _Column("bad rows", "bad_rows", _count, is_rare=True),
    _Column("done", "done", _count),
    _Column("rejected", "rejected", _count, is_rare=True),
    _Column("unfinished", "unfinished", _count, is_rare=True),
    _Column("never sent", "never_sent", _count, is_rare=True),
    _Column("tokens/s", "output_tokens_per_s", _rate),
    _Column("TTFT p50", "ttft_p50_ms", show_ms, is_wide=True),
    _Column("TTFT p99", "ttft_p99_ms", show_ms),
    _Column("TPOT p50", "tpot_p50_ms", show_ms, is_wide=True),
    _Column("TPOT p99", "tpot_p99_ms", show_ms),
    _Column("E2E p99", "e2e_p99_ms", show_ms, yields=True),
    _Column("preempted", "preemptions", _count, is_rare=True, yields=True),
    _Column("busy", "busy_share", _share, yields=True),
    _Column("prefix hits", "prefix_hit_share", _share, is_rare=True),
)
_LIMITS: Final = (_Column("good/s", GOOD, _rate), _Column("good", GOOD_SHARE, _share))
"""Beside the others, where there are limits."""


def render(result: SweepResult, width: int) -> Group:
    """The table and what failed, for a terminal of `width` columns."""
    points = result.points
    limits = _LIMITS if result.slo is not None else ()
    columns = [
        column
        for column in (*_COLUMNS, *limits)
        if (not (column.is_wide or (column.yields and limits)) or width >= WIDE)
        and (not column.is_rare or any(p.figures and p.figures[column.figure] for p in points))
    ]
    places = [
        _widest(axis.name, (show(p.settings[axis.name]) for p in points)) for axis in result.axes
    ]
    least = [min(each, _LEGIBLE) for each in places] + [len("meets")] * bool(limits)
    columns = _that_fit(columns, points, width - sum(least) - _GAP * len(least))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for axis, natural in zip(result.axes, places, strict=True):
        table.add_column(axis.name, style="bold", min_width=min(natural, _LEGIBLE))
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    if limits:
        table.add_column("meets", no_wrap=True)
    for point in points:
        place = [show(value) for value in point.settings.values()]
        if point.figures is None:
            table.add_row(*place, Text("failed", style="red"))
        else:
            cells = [column.shown(point.figures[column.figure]) for column in columns]
            verdict = [_verdict(point)] if limits else []
            table.add_row(*place, *cells, *verdict)
    parts: list[RenderableType] = [table]
    if limits:
        said = f"good: requests that keep every limit of {result.slo} at once; meets: the promise as a whole is kept"
        parts += [Text(""), Text(said, style="dim")]
    failed: dict[str, list[SweepPoint]] = {}
    for point in points:
        if point.error is not None:
            failed.setdefault(point.error, []).append(point)
    if failed:
        parts.append(Text(""))
    for message in list(failed)[:SHOWN_FAILURES]:
        parts.append(_failure(failed[message], message))
    if len(failed) > SHOWN_FAILURES:
        parts.append(Text(f"and {len(failed) - SHOWN_FAILURES:,} other failures, in the JSON"))
    return Group(*parts)


def _that_fit(columns: Sequence[_Column], points: Sequence[SweepPoint], room: int) -> list[_Column]:
    """The columns without the last of those that others can do without: what was lost, what is done and what is good stay."""
    kept = list(columns)
    widths = {
        column.figure: _GAP
        + _widest(
            column.title, (column.shown(p.figures[column.figure]) for p in points if p.figures)
        )
        for column in columns
    }
    spare = [c for c in columns if not c.is_rare and c.figure != "done" and c not in _LIMITS]
    while spare and sum(widths[column.figure] for column in kept) > room:
        kept.remove(spare.pop())
    return kept


def _widest(title: str, cells: Iterable[str]) -> int:
    return max([len(title), *map(len, cells)])


def _verdict(point: SweepPoint) -> Text:
    if point.meets is None:
        return Text("-")
    return Text("yes", style="green") if point.meets else Text("no", style="yellow")


def _failure(points: list[SweepPoint], message: str) -> Text:
    place = ", ".join(f"{name}={show(value)}" for name, value in points[0].settings.items())
    more = f" and {len(points) - 1:,} more" if len(points) > 1 else ""
    return Text.assemble((f"{place}{more}: " if place else "failed: ", "bold red"), message)
