"""Where the words of a chart stand, so that none lies over another, over a dot or over the axis. Pure arithmetic, in pixels.

A page is as wide as its reader's window, so a place must be free at several widths. A name that has none is left out: the list under the chart has it.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple, get_args

Side = Literal["e", "w", "ne", "nw", "se", "sw", "n", "s", "nne", "nnw", "sse", "ssw"]
"""Of a point, as on a compass; the style sheet has the same offsets."""
LimitSide = Literal["below", "above", "below start", "above start"]
"""Of a level line, at its end or its start."""
SIDES: Final = get_args(Side)
LIMIT_SIDES: Final = get_args(LimitSide)
PLOTS: Final = ((280.0, 200.0), (420.0, 200.0), (640.0, 200.0))
"""Width and height of a plot on a telephone, beside another, and alone."""
PAPER: Final = ((180.0, 130.0),)
_CHARACTER, _HEIGHT = 7.2, 14.0
"""Of text of 12 px; the width is that of a wide typeface."""
_LEAD: Final = 2.0
"""Empty above and below the letters of a line."""
_ABOVE: Final = 14.0
"""Empty between a plot and its caption."""
_ACROSS: Final = 9.0
"""From a point to a text beside it."""
_TOPS: Final = {"e": -7, "ne": -15, "se": 1, "n": -21, "s": 7, "nne": -24, "sse": 10}
"""From a point down to the top of a text east of it; west is the same."""
_DOT: Final = 5.0
"""From the middle of a dot to its edge."""

Place = tuple[float, float]
"""Across from the left and down from the top, as shares of the plot."""


class Box(NamedTuple):
    """A rectangle; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Box") -> bool:
        """Whether the two share a point."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def crossed_by(self, start: Place, end: Place) -> bool:
        """Whether a straight line passes through."""
        low, high = 0.0, 1.0
        for at, to, near, far in (
            (start[0], end[0], self.left, self.right),
            (start[1], end[1], self.top, self.bottom),
        ):
            if at == to:
                if not near < at < far:
                    return False
                continue
            first, last = sorted(((near - at) / (to - at), (far - at) / (to - at)))
            low, high = max(low, first), min(high, last)
        return low < high


class Labels(NamedTuple):
    """Where each text goes."""

    points: list[Side | None]
    """None: there is no room."""
    limits: list[LimitSide]
    on_paper: list[bool]
    """Of each point: there is room on paper too."""


def place_labels(
    points: Sequence[tuple[str, Place]],
    limits: Sequence[tuple[str, float]],
    curves: Sequence[Sequence[Place]],
    dots: Sequence[Place],
) -> Labels:
    """Sides for texts at points and at level lines, the first that is free: the lowest point's first, which has least room.

    Args:
        points: Texts with their points.
        limits: Texts with the height of their line, down from the top.
        curves: Corners of each.
        dots: All that are drawn.
    """
    plots = [_Plot(*size, curves, dots) for size in PLOTS]
    paper = [_Plot(*size, curves, dots) for size in PAPER]
    at_limits: list[LimitSide] = []
    for text, y in limits:
        limit_side = next(
            (
                s
                for s in LIMIT_SIDES
                if all(plot.takes(plot.limit(text, y, s), 0.0) for plot in plots)
            ),
            LIMIT_SIDES[0],
        )
        at_limits.append(limit_side)
    for plot in (*plots, *paper):
        plot.taken += [
            plot.limit(text, y, s) for (text, y), s in zip(limits, at_limits, strict=True)
        ]
        plot.levels += [y * plot.height for _, y in limits]
    sides: list[Side | None] = [None] * len(points)
    on_paper = [False] * len(points)
    for index in sorted(range(len(points)), key=lambda i: (-points[i][1][1], i)):
        for side in SIDES:
            if all(plot.takes(plot.beside(*points[index], side)) for plot in plots):
                sides[index] = side
                on_paper[index] = all(p.takes(p.beside(*points[index], side)) for p in paper)
                for plot in (*plots, *(paper if on_paper[index] else ())):
                    plot.taken.append(plot.beside(*points[index], side))
                break
    return Labels(sides, at_limits, on_paper)


class _Plot:
    """A plot of one size, and what is drawn there."""

    def __init__(
        self,
        width: float,
        height: float,
        curves: Sequence[Sequence[Place]],
        dots: Sequence[Place],
    ) -> None:
        self.width, self.height = width, height
        self._curves = [[self._at(place) for place in curve] for curve in curves]
        middles = [self._at(place) for place in dots]
        self._dots = [Box(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in middles]
        self.taken: list[Box] = []
        self.levels: list[float] = []
        """Of level lines."""

    def _at(self, place: Place) -> Place:
        return place[0] * self.width, place[1] * self.height

    def beside(self, text: str, point: Place, side: Side) -> Box:
        """The text at a side of a point."""
        x, y = self._at(point)
        wide = len(text) * _CHARACTER
        left = x - wide / 2
        if "e" in side:
            left = x + _ACROSS
        elif "w" in side:
            left = x - _ACROSS - wide
        top = y + _TOPS[side.replace("w", "e")]
        return Box(left, top, left + wide, top + _HEIGHT)

    def limit(self, text: str, y: float, side: LimitSide) -> Box:
        """The text at a level line."""
        wide = len(text) * _CHARACTER
        left = 0.0 if "start" in side else self.width - wide
        top = y * self.height + (2.0 if "below" in side else -_HEIGHT - 2.0)
        return Box(left, top, left + wide, top + _HEIGHT)

    def takes(self, box: Box, lead: float = _LEAD) -> bool:
        """Whether nothing lies there, nor any line across the letters, which begin `lead` below the top and end as far above the bottom."""
        if box.left < 0 or box.top < -_ABOVE or box.right > self.width or box.bottom > self.height:
            return False
        if any(box.meets(other) for other in (*self.taken, *self._dots)):
            return False
        ink = Box(box.left, box.top + lead, box.right, box.bottom - lead)
        return not any(ink.crossed_by(*ends) for ends in self._lines())

    def _lines(self) -> Iterator[tuple[Place, Place]]:
        for curve in self._curves:
            yield from pairwise(curve)
        for level in self.levels:
            yield (0.0, level), (self.width, level)
