"""Puts rows in arrival order, and sorts out those that cannot be used where they stand. Knows no file format.

Memory is bounded: a row may come up to `WINDOW` rows too late in the file; one that comes later still is a `BadRow`. The requests
of a session that wait for another one go with the request above them, so that sessions stay together.
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import Final

from traces.schema import MAX_ARRIVAL_NS, ROOT, BadRow, Row, TraceRequest

WINDOW: Final = 16_384


def in_order(rows: Iterable[Row], window: int = WINDOW) -> Iterator[Row]:
    """Yields requests by arrival, those of one instant in file order; bad rows pass as they come.

    A file in order comes out in file order. O(log window) each.
    """
    heap: list[tuple[int, int, TraceRequest]] = []
    newest: int | None = None
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
            message = (
                f"the row arrives {late_ms:g} ms before one that stands more than {window} rows above; "
                "sort the file first"
            )
            yield BadRow(row.line, "out_of_order", message)
            continue
        heapq.heappush(heap, (comes_ns, place, row))
        if len(heap) > window:
            newest, _, oldest = heapq.heappop(heap)
            yield oldest
    heap.sort()
    for _, _, row in heap:
        yield row


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
            years = (row.arrival_ns - origin_ns) / (365.25 * 86_400e9)
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
