"""Arrival order in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from traces.order import in_order
from traces.schema import BadRow, TraceRequest


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
