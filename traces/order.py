"""Puts rows in arrival order. Knows no file format.

Memory is bounded: a row may come up to `WINDOW` rows too late in the file; one that comes later still is a `BadRow`. The requests
of a session that wait for another one go with the request above them, so that sessions stay together.
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import Final

from traces.schema import ROOT, BadRow, Row, TraceRequest

WINDOW: Final = 16_384


def in_order(rows: Iterable[Row], window: int = WINDOW) -> Iterator[Row]:
    """Yields requests by arrival, those of one instant in file order; bad rows pass as they come.

    A file in order comes out in file order. O(log window) each.
    """
    heap: list[tuple[int, int, TraceRequest]] = []
    newest: int | None = None
    comes_ns = 0
    for place, row in enumerate(rows):
        if isinstance(row, BadRow):
            yield row
            continue
        if row.after == ROOT:
            comes_ns = row.arrival_ns
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
