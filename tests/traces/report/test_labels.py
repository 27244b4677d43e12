"""Words of a chart lie over nothing, at the offsets that the style sheet really has."""

import re
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import traces.report
from traces.report import charts
from traces.report.document import Chart, Curve, Mark
from traces.report.labels import SIDES, place_labels

CSS = (Path(traces.report.__file__).parent / "report.css").read_text()
WIDE, HIGH = 7.0, 14.0
"""Pixels of a character, and of a line."""
shares = st.floats(0, 1)
places = st.tuples(shares, shares)


def top_in_css(side):
    rules = re.findall(r"([^{}]+)\{[^{}]*\btop: (-?\d+)px", CSS)
    named = [int(top) for names, top in rules if re.search(rf"\.spot \.{side}\b", names)]
    [usual] = [int(top) for names, top in rules if ".spot span" in names]
    return named[0] if named else usual


TOPS = {side: top_in_css(side) for side in SIDES}


def box_of(text, place, side, width, height=200.0):
    """Left, top, right and bottom of a text beside its point."""
    x, y = place[0] * width, place[1] * height + TOPS[side]
    wide = len(text) * WIDE
    left = x + 9 if "e" in side else x - 9 - wide if "w" in side else x - wide / 2
    return left, y, left + wide, y + HIGH


def apart(a, b):
    return a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


@given(st.lists(places, max_size=7), st.lists(shares, max_size=1), st.sampled_from((280, 420, 640)))
def test_no_text_lies_over_another_or_a_dot_or_leaves_the_plot(points, levels, width):
    texts = [(f"{place + 2} x H100", at) for place, at in enumerate(points)]
    found = place_labels(texts, [("promised 2 s", y) for y in levels], [], points)
    boxes = [
        box_of(text, at, side, width)
        for (text, at), side in zip(texts, found.points, strict=True)
        if side is not None
    ]
    for left, top, right, bottom in boxes:
        assert left >= 0
        assert top >= -14  # the caption keeps that far off
        assert right <= width
        assert bottom <= 200
    dots = [(x * width - 4, y * 200 - 4, x * width + 4, y * 200 + 4) for x, y in points]
    for y in levels:
        assert all(apart(box, (0, y * 200 + 2, width, y * 200 - 2)) for box in boxes)
    assert all(apart(a, b) for a, b in combinations(boxes, 2))
    assert all(apart(box, dot) for box in boxes for dot in dots)


def test_a_curve_is_not_written_over_and_a_name_without_room_is_left_out():
    at = (0.5, 0.5)
    [free] = place_labels([("H100", at)], [], [[(0.0, 0.5), at]], [at]).points
    assert free == "e"
    [beside] = place_labels([("H100", at)], [], [[at, (1.0, 0.5)]], [at]).points
    assert beside == "w"
    [over] = place_labels([("H100", at)], [], [[(0.0, 0.5), (1.0, 0.5)]], [at]).points
    assert over == "ne"
    grid = [[(0.0, y / 50), (1.0, y / 50)] for y in range(51)]
    assert place_labels([("H100", at)], [], grid, [at]).points == [None]


@pytest.mark.parametrize("level", [0.01, 0.5, 0.99])
def test_a_promise_is_written_inside_the_plot_and_beside_a_curve(level):
    along = [(0.0, level + 0.04), (1.0, level + 0.04)]
    [side] = place_labels([], [("promised 2 s", level)], [along] if level == 0.5 else [], []).limits
    assert side == ("below" if level == 0.01 else "above")


def test_a_percentile_near_the_top_is_named_above_the_plot():
    rising = [(0.0, 1.0), (0.4, 0.5), (0.6, 0.1), (0.7, 0.01), (0.9, 0.0)]
    texts = [("p50 106 ms", (0.4, 0.5)), ("p90 297 ms", (0.6, 0.1)), ("p99 525 ms", (0.7, 0.01))]
    found = place_labels(texts, [], [rising], [at for _, at in texts])
    assert None not in found.points
    assert found.points[2] in {"ne", "nw"}


def test_fleets_near_zero_are_all_named():
    """Three kinds of machine of which two end a few milliseconds above the axis, below a promise."""
    ends = {"A100-80": (3.0, 15.9), "2 x L4": (4.0, 51.2), "H100": (3.0, 8.17)}
    before = [(37.0, 19.7), (236.0, 88.0), (11.4, 8.53)]
    chart = Chart(
        title="tpot_p99 against replicas",
        x_title="replicas",
        y_title="",
        y_unit="ms",
        x_zero=True,
        curves=[
            Curve(label=name, x=[1.0, 2.0, x], y=[start, middle, y], dots=True)
            for (name, (x, y)), (start, middle) in zip(ends.items(), before, strict=True)
        ],
        marks=[
            *(Mark(text=name, x=x, y=y) for name, (x, y) in ends.items()),
            Mark(text="promised 100 ms", y=100.0),
        ],
    )
    markup, _ = charts.charts(charts.Charts(name="c", charts=[chart]))
    named = re.findall(r'<span class="(\w+)[^"]*">([^<]+)</span></b>', markup)
    sides = {text: side for side, text in named}
    assert set(sides) == {*ends, "promised 100 ms"}
    assert sides["H100"] != sides["A100-80"]
