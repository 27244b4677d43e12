"""Axes: where ticks go and how they read. Pure arithmetic."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

Format = Callable[[float], str]


class Tick(NamedTuple):
    """A mark on an axis."""

    place: float
    """0 at the axis' start, 1 at its end."""
    text: str


class Axis(NamedTuple):
    """From values to places between 0 and 1; `log` axes start above 0."""

    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value is; what lies outside is put at the edge."""
        if self.log:
            low, high = math.log10(self.start), math.log10(self.end)
            at = (math.log10(max(value, self.start)) - low) / (high - low)
        else:
            at = (value - self.start) / (self.end - self.start)
        return min(1.0, max(0.0, at))

    def ticks(self, most: int, text: Format) -> list[Tick]:
        """At most about `most` round values with their places."""
        values = _decades(self, most) if self.log else _steps(self, most)
        return [Tick(self.place(value), text(value)) for value in values]


def amount_axis(values: Sequence[float], least: float = 1.0) -> Axis:
    """From 0 to a round value above all of these."""
    top = max([*values, least])
    step = round_step(top / 4)
    return Axis(0.0, step * math.ceil(top / step - 1e-9))


def minutes_axis(values: Sequence[float]) -> Axis:
    """From 0 to a time above all of these, in milliseconds, of up to four steps that clocks know."""
    top = max(values)
    step = 1000 * time_step(top / 4000)
    return Axis(0.0, step * math.ceil(top / step - 1e-9))


def minute_ticks(axis: Axis) -> list[Tick]:
    """Of a `minutes_axis`."""
    step = 1000 * time_step(axis.end / 4000)
    hours = axis.end > 7_200_000
    unit, size = ("h", 3.6e6) if hours else ("min", 6e4)
    values = [i * step for i in range(int(axis.end / step + 1e-9) + 1)]
    return [Tick(axis.place(v), f"{v / size:.3g} {unit}" if v else "0") for v in values]


def log_axis(values: Sequence[float]) -> Axis:
    """Around all of these that are above 0, to the next half decade."""
    above = [value for value in values if value > 0] or [1.0]
    start = 10 ** (math.floor(2 * math.log10(min(above))) / 2)
    end = 10 ** (math.ceil(2 * math.log10(max(above)) + 1e-9) / 2)
    return Axis(start, max(end, start * 10**0.5), log=True)


def round_step(rough: float) -> float:
    """1, 2, 2.5 or 5 times a power of ten, at least `rough`."""
    if rough <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * step for step in (1, 2, 2.5, 5, 10) if power * step >= rough * (1 - 1e-9))


def time_step(rough: float) -> float:
    """A step of seconds that clocks know, at least `rough`."""
    steps = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
    if rough <= 30:
        return round_step(rough)
    return next((float(step) for step in steps if step >= rough), round_step(rough))


def clock(value: float) -> str:
    """Seconds from the start, for an axis: 0, 45 s, 2:30, 1:05:00."""
    if value < 60:
        return f"{value:g} s" if value else "0"
    whole = round(value)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def time_ticks(end: float, most: int = 8) -> list[Tick]:
    """Of an axis from 0 to `end` seconds."""
    step = time_step(end / most)
    return [Tick(i * step / end, clock(i * step)) for i in range(int(end / step + 1e-9) + 1)]


def _steps(axis: Axis, most: int) -> list[float]:
    step = round_step((axis.end - axis.start) / most)
    first = math.ceil(axis.start / step - 1e-9)
    return [i * step for i in range(first, math.floor(axis.end / step + 1e-9) + 1)]


def _decades(axis: Axis, most: int) -> list[float]:
    low, high = math.log10(axis.start), math.log10(axis.end)
    places = range(math.floor(low), math.ceil(high) + 1)
    for marks in ((1, 2, 5), (1, 3), (1,)):
        values = [m * 10.0**p for p in places for m in marks]
        inside = [v for v in values if low - 1e-9 <= math.log10(v) <= high + 1e-9]
        if len(inside) <= most:
            break
    return inside[:: -(-len(inside) // most)]
