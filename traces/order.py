"""Puts rows in arrival order, and sorts out those that cannot be used where they stand. Knows no file format.

Memory is bounded: a row may come up to `WINDOW` rows too late in the file; one that comes later still is a `BadRow`. The requests
of a session that wait for another one go with the request above them, so that sessions stay together.
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import Final

from traces.report.numbers import counted
from traces.schema import MAX_ARRIVAL_NS, ROOT, BadRow, Row, TraceRequest

WINDOW: Final = 16_384
_YEAR_NS: Final = 365.25 * 86_400e9
_STRAY_YEARS: Final = 10
"""Rows so long before the bulk of a trace did not arrive then: an empty time was written as the year 1, or as 1970."""
_Waiting = tuple[int, int, TraceRequest]
"""When a row comes, its place in the file, the row."""


def in_order(rows: Iterable[Row], window: int = WINDOW) -> Iterator[Row]:
    """Yields requests by arrival, those of one instant in file order; bad rows pass as they come.

    A file in order comes out in file order. Rows that stand years before the bulk of the first `window` are bad themselves, so that the
    others are not measured by them. O(log window) each.
    """
    heap: list[_Waiting] = []
    newest: int | None = None
    settled = False
    comes_ns = 0
    session = ROOT
    for place, row in enumerate(rows):
        if isinstance(row, BadRow):
            yield row
            continue
        if row.after == ROOT and (row.session == ROOT or row.session != session):
            comes_ns = row.arrival_ns
        session = row.session
        if newest is not None and comes_ns < newest:
            late_ms = (newest - comes_ns) / 1e6
            if newest - comes_ns > _STRAY_YEARS * _YEAR_NS:
                yield _stray(row, newest - comes_ns, "rows above it")
                continue
            message = (
                f"the row arrives {late_ms:g} ms before one that stands more than {window} rows above; "
                "sort the file first"
            )
            yield BadRow(row.line, "out_of_order", message)
            continue
        heapq.heappush(heap, (comes_ns, place, row))
        if len(heap) > window:
            if not settled:
                settled = True
                yield from _take_strays(heap)
                if len(heap) <= window:
                    continue
            newest, _, oldest = heapq.heappop(heap)
            yield oldest
    if not settled:
        yield from _take_strays(heap)
    heap.sort()
    for _, _, row in heap:
        yield row


def _take_strays(heap: list[_Waiting]) -> Iterator[BadRow]:
    """Takes the rows that stand years before the bulk out of the heap, as bad rows; of two groups as large, the later one is the bulk."""
    heap.sort()
    start, bulk = 0, range(0)
    for end in range(1, len(heap) + 1):
        if end == len(heap) or heap[end][0] - heap[end - 1][0] > _STRAY_YEARS * _YEAR_NS:
            if end - start >= len(bulk):
                bulk = range(start, end)
            start = end
    for comes_ns, _, row in heap[: bulk.start]:
        yield _stray(row, heap[bulk.start][0] - comes_ns, counted(len(bulk), "other"))
    del heap[: bulk.start]


def _stray(row: TraceRequest, early_ns: int, whom: str) -> BadRow:
    message = (
        f"the row arrives {early_ns / _YEAR_NS:,.0f} years before {whom}: its time cannot be right"
    )
    return BadRow(row.line, "bad_timestamp", message)


def usable(rows: Iterable[Row]) -> Iterator[Row]:
    """Yields rows in arrival order, as bad rows those whose time is out of range and those that would wait for ever.

    A request can wait for a turn of its session that stands above it, with no row of another session between them.
    """
    origin_ns: int | None = None
    session = ROOT
    turns: set[int] = set()
    for row in rows:
        if isinstance(row, BadRow):
            yield row
            continue
        if origin_ns is None:
            origin_ns = row.arrival_ns
        if row.arrival_ns - origin_ns > MAX_ARRIVAL_NS:
            years = (row.arrival_ns - origin_ns) / _YEAR_NS
            message = f"the row arrives {years:,.0f} years after the first, expected at most 146"
            yield BadRow(row.line, "bad_timestamp", message)
            continue
        if row.session != session:
            session, turns = row.session, set()
        if row.after != ROOT and row.after not in turns:
            message = (
                f"turn {row.turn} of session {row.session} waits for turn {row.after}, which is missing or bad; "
                "a session's rows stand together in turn order"
            )
            yield BadRow(row.line, "bad_row", message)
            continue
        if row.session != ROOT:
            turns.add(row.turn)
        yield row
