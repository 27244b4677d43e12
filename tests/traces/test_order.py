"""Arrival order in bounded memory, and rows that cannot be used where they stand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import DATA
from traces.formats import read_trace
from traces.order import in_order, usable
from traces.schema import MAX_ARRIVAL_NS, NO_HASHES, ROOT, BadRow, TraceRequest


@given(st.lists(st.integers(0, 50)), st.integers(1, 8))
def test_rows_come_out_in_order_and_none_vanishes(times, window):
    rows = [TraceRequest(line, time, 1, 1) for line, time in enumerate(times, start=1)]
    out = list(in_order(rows, window))
    assert sorted(row.line for row in out) == list(range(1, len(rows) + 1))
    kept = [(row.arrival_ns, row.line) for row in out if isinstance(row, TraceRequest)]
    assert kept == sorted(kept)


@given(st.lists(st.integers(0, 50), max_size=8))
def test_a_window_as_long_as_the_trace_sorts_it(times):
    rows = [TraceRequest(line, time, 1, 1) for line, time in enumerate(times, start=1)]
    assert list(in_order(rows, 8)) == sorted(rows, key=lambda row: (row.arrival_ns, row.line))


def test_a_row_that_comes_too_late_is_bad_with_its_line():
    rows = [TraceRequest(line, time, 1, 1) for line, time in [(1, 5), (2, 6), (3, 7), (4, 2)]]
    *_, last = (row for row in in_order(rows, 1) if isinstance(row, BadRow))
    assert (last.line, last.code) == (4, "out_of_order")


def test_a_trace_is_read_no_further_ahead_than_the_window():
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield TraceRequest(read, read, 1, 1)

    rows = in_order(endless(), 10)
    for given_out in range(1, 50):
        next(rows)
        assert read == given_out + 10


AGE = 60 * 366 * 86_400 * 10**9


@pytest.mark.parametrize("window", [3, 4, 5, 100])
@pytest.mark.parametrize("strays", [[1], [2], [6], [1, 4], [2, 8], [9]])
def test_rows_of_another_age_are_bad_wherever_they_stand(strays, window):
    rows = [
        TraceRequest(line, 0 if line in strays else AGE + 10 * line, 1, 1) for line in range(1, 10)
    ]
    out = list(usable(in_order(rows, window)))
    bad = [(row.line, row.code) for row in out if isinstance(row, BadRow)]
    assert sorted(bad) == [(line, "bad_timestamp") for line in strays]
    good = [row.line for row in out if isinstance(row, TraceRequest)]
    assert good == [line for line in range(1, 10) if line not in strays]


def test_one_row_beside_a_stray_is_one_other():
    rows = [TraceRequest(1, 0, 1, 1), TraceRequest(2, AGE, 1, 1)]
    stray, _ = in_order(rows)
    assert isinstance(stray, BadRow)
    assert "years before 1 other:" in stray.message


def test_a_window_that_loses_strays_still_sorts():
    times = [0, AGE + 30, AGE + 40, AGE + 20, AGE + 50]
    rows = [TraceRequest(line, time, 1, 1) for line, time in enumerate(times, start=1)]
    assert [row.line for row in in_order(rows, 2)] == [1, 4, 2, 3, 5]


def test_the_larger_part_of_a_trace_is_its_age():
    rows = [TraceRequest(line, 0 if line < 4 else AGE, 1, 1) for line in range(1, 6)]
    assert [row.line for row in usable(in_order(rows)) if isinstance(row, TraceRequest)] == [
        *(1, 2, 3),
        *(4, 5),
    ], "rows that follow decades later are kept, as long as they fit the clock"


def turn(line, session, number, after, at=0):
    return TraceRequest(line, at, 1, 1, NO_HASHES, session, number, after)


def test_a_session_with_several_beginnings_stays_together():
    rows = [turn(1, 0, 0, ROOT), turn(2, 0, 1, ROOT, 9), turn(3, 1, 0, ROOT, 5), turn(4, 1, 1, 0)]
    assert [row.line for row in in_order(rows)] == [1, 2, 3, 4]


@given(st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 3), st.integers(-1, 2)), max_size=12))
def test_whoever_waits_for_a_turn_that_never_ends_is_a_bad_row(parts):
    rows = [
        turn(line, session, number, after if session >= 0 and after < number else ROOT)
        for line, (session, number, after) in enumerate(parts, start=1)
    ]
    good: list[TraceRequest] = []
    for row in usable(rows):
        if isinstance(row, TraceRequest):
            good.append(row)
            continue
        above = []
        for other in reversed(rows[: row.line - 1]):
            if other.session != rows[row.line - 1].session:
                break
            if other in good:
                above.append(other.turn)
        assert rows[row.line - 1].after not in above
    for place, row in enumerate(good):
        assert row.after == ROOT or any(
            other.session == row.session and other.turn == row.after for other in good[:place]
        )


def test_a_time_of_another_age_is_a_bad_row():
    rows = [TraceRequest(1, 7, 1, 1), TraceRequest(2, 7 + MAX_ARRIVAL_NS, 1, 1)]
    late = TraceRequest(3, 8 + MAX_ARRIVAL_NS, 1, 1)
    *good, bad = usable([*rows, late])
    assert good == rows
    assert isinstance(bad, BadRow)
    assert (bad.line, bad.code) == (3, "bad_timestamp")


@pytest.mark.parametrize(
    "name", ["azure_sample.csv", "mooncake_sample.jsonl", "sessions_sample.jsonl"]
)
def test_a_byte_order_mark_changes_nothing(name):
    data = (DATA / name).read_bytes()
    plain, marked = read_trace([data], name), read_trace([b"\xef\xbb\xbf" + data], name)
    assert list(marked.requests()) == list(plain.requests())
    assert marked.num_requests
    assert marked.bad_counts == plain.bad_counts
