"""Axes and drawings: ticks are round and inside, and what is drawn is what was given."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.report import svg
from traces.report.scale import Axis, amount_axis, clock, log_axis, time_ticks

amounts = st.lists(st.floats(0, 1e12, allow_subnormal=False), min_size=1, max_size=20)


@given(amounts)
def test_amount_axis_starts_at_zero_and_covers_its_values(values):
    axis = amount_axis(values)
    assert axis.start == 0
    assert axis.end >= max(values)
    ticks = axis.ticks(5, str)
    assert 2 <= len(ticks) <= 6
    assert [t.place for t in ticks] == sorted({t.place for t in ticks})


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=20), st.integers(3, 8))
def test_log_axis_covers_its_values_with_few_ticks(values, most):
    axis = log_axis(values)
    assert axis.start <= min(values) * (1 + 1e-9)
    assert axis.end >= max(values) * (1 - 1e-9)
    ticks = axis.ticks(most, str)
    assert 1 <= len(ticks) <= most
    assert all(axis.place(float(t.text)) == t.place for t in ticks)


@given(st.floats(0.01, 1e7))
def test_time_ticks_begin_at_zero_and_stay_inside(end):
    ticks = time_ticks(end)
    assert ticks[0] == (0.0, "0")
    assert ticks[-1].place <= 1 + 1e-9
    assert 2 <= len(ticks) <= 10


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0"), (45, "45 s"), (150, "2:30"), (3900, "1:05:00")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text


def levels(path: str, end_s: list[float]) -> list[float]:
    """The heights, 0 to 1, of a stepped path in the middle of each bin."""
    x = y = 0.0
    runs = []
    for command, text in re.findall(r"([MHV])([\d ]+)", path):
        numbers = [float(part) for part in text.split()]
        if command == "M":
            x, y = numbers
        elif command == "V":
            y = numbers[0]
        else:
            runs.append((x, numbers[0], y))
            x = numbers[0]
    middles = [
        (a + b) / 2 / end_s[-1] * svg.WIDTH for a, b in zip([0.0, *end_s], end_s, strict=False)
    ]
    return [
        next(1 - y / svg.HEIGHT for left, right, y in runs if left <= middle <= right)
        for middle in middles
    ]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50))
def test_steps_hold_each_value_over_its_bin(values):
    end_s = [0.5 * (i + 1) for i in range(len(values))]
    drawn = levels(svg.steps(end_s, values, Axis(0.0, 100.0)), end_s)
    assert drawn == pytest.approx([v / 100 for v in values], abs=1 / svg.HEIGHT)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50)), min_size=1, max_size=50))
def test_band_lies_between_its_lines(pairs):
    end_s = [float(i + 1) for i in range(len(pairs))]
    lower = [a for a, _ in pairs]
    upper = [a + b for a, b in pairs]
    path = re.search(r' d="(.*)Z"', svg.band(end_s, upper, lower, Axis(0.0, 100.0), "used"))[1]
    there = path[: path.index(f"H{svg.WIDTH}") + len(f"H{svg.WIDTH}")]
    back = path[len(there) :]
    assert levels(there, end_s) == pytest.approx([v / 100 for v in upper], abs=1 / svg.HEIGHT)
    # Read from left to right, the way back is a stepped line too.
    parts = re.findall(r"[HV]\d+", back)
    runs, x, y = [], svg.WIDTH, None
    for part in parts:
        if part[0] == "V":
            y = int(part[1:])
        else:
            runs.append((int(part[1:]), x, y))
            x = int(part[1:])
    for i, value in enumerate(lower):
        middle = (i + 0.5) / end_s[-1] * svg.WIDTH
        level = next(y for left, right, y in runs if left <= middle <= right)
        assert 1 - level / svg.HEIGHT == pytest.approx(value / 100, abs=1 / svg.HEIGHT)
