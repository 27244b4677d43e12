"""What each axis of a sweep does to a figure: lines along the axis, by how much it moves the figure, tables of two axes. Pure arithmetic."""

from statistics import median
from typing import Any, Final, NamedTuple

from sim.sweep.axes import Axis, show
from sim.sweep.result import SweepPoint, SweepResult

MOST_LINES: Final = 4
"""Of single combinations; where there are more, their lowest, middle and highest values are drawn."""


class Along(NamedTuple):
    """A figure along an axis."""

    label: str
    at: list[int]
    """Places on the axis, ascending."""
    values: list[float]


def figure_of(point: SweepPoint, name: str) -> float | None:
    """A figure of a point; None where there is none."""
    value = point.figures.get(name) if point.figures is not None else None
    return None if value is None else float(value)


def place_of(settings: dict[str, Any]) -> str:
    """A point's place as words: `block_size 16, rate_scale 2`."""
    return ", ".join(f"{name} {show(value)}" for name, value in settings.items())


def along(result: SweepResult, axis: Axis, figure: str) -> list[Along]:
    """Lines along the axis: one for each combination of the other axes, or the lowest, middle and highest of them."""
    groups = _groups(result, axis, figure)
    if len(groups) <= MOST_LINES:
        return [
            Along(label, list(line), list(line.values())) for label, line in groups.items() if line
        ]
    columns: dict[int, list[float]] = {}
    for line in groups.values():
        for at, value in line.items():
            columns.setdefault(at, []).append(value)
    places = sorted(columns)
    named = (("highest", max), ("middle", median), ("lowest", min))
    return [
        Along(f"{label} of the others", places, [float(pick(columns[at])) for at in places])
        for label, pick in named
        if places
    ]


def effect(result: SweepResult, axis: Axis, figure: str) -> float | None:
    """How many times as high the figure's highest value along the axis is as its lowest, in the middle of all combinations of the others;
    None where no two values above 0 can be compared.
    """
    ratios = []
    for line in _groups(result, axis, figure).values():
        values = [value for value in line.values() if value > 0]
        if len(values) > 1:
            ratios.append(max(values) / min(values))
    return median(ratios) if ratios else None


def crossed(
    result: SweepResult, rows: Axis, columns: Axis, figure: str
) -> list[list[float | None]]:
    """[rows][columns] the figure, in the middle of all combinations of the other axes; None where there is none."""
    cells: dict[tuple[int, int], list[float]] = {}
    for point in result.points:
        value = figure_of(point, figure)
        if value is not None:
            at = _index(rows, point), _index(columns, point)
            cells.setdefault(at, []).append(value)
    return [
        [
            median(found) if (found := cells.get((row, column))) else None
            for column in range(len(columns.values))
        ]
        for row in range(len(rows.values))
    ]


def middles(result: SweepResult, axis: Axis, figure: str) -> list[float | None]:
    """[values of the axis] the figure, in the middle of all combinations of the other axes; None where there is none."""
    cells: list[list[float]] = [[] for _ in axis.values]
    for point in result.points:
        value = figure_of(point, figure)
        if value is not None:
            cells[_index(axis, point)].append(value)
    return [median(found) if found else None for found in cells]


def strongest(result: SweepResult, figure: str) -> list[tuple[float, Axis]]:
    """(effect, axis), the axis that moves the figure most first."""
    found = [(effect(result, axis, figure), axis) for axis in result.axes]
    known = [(size, axis) for size, axis in found if size is not None]
    return sorted(known, key=lambda pair: -pair[0])


def extremes(result: SweepResult, figure: str) -> tuple[SweepPoint, SweepPoint] | None:
    """The points of the lowest and the highest value, the first where several have it; None where there is none."""
    known = [p for p in result.points if figure_of(p, figure) is not None]
    if not known:
        return None

    def value(point: SweepPoint) -> float:
        return figure_of(point, figure) or 0.0

    return min(known, key=value), max(known, key=value)


def _groups(result: SweepResult, axis: Axis, figure: str) -> dict[str, dict[int, float]]:
    groups: dict[str, dict[int, float]] = {}
    for point in result.points:
        others = {name: value for name, value in point.settings.items() if name != axis.name}
        line = groups.setdefault(place_of(others), {})
        value = figure_of(point, figure)
        if value is not None:
            line[_index(axis, point)] = value
    return {label: dict(sorted(line.items())) for label, line in groups.items()}


def _index(axis: Axis, point: SweepPoint) -> int:
    return axis.values.index(point.settings[axis.name])
