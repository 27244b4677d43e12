"""Puts rows in arrival order. Knows no file format.

Memory is bounded: a row may come up to `WINDOW` rows too late in the file; one that comes later still is a `BadRow`.
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import Final

from traces.schema import BadRow, TraceRequest

WINDOW: Final = 65_536


def in_order(
    rows: Iterable[TraceRequest | BadRow], window: int = WINDOW
) -> Iterator[TraceRequest | BadRow]:
    """Yields requests by (arrival, line); bad rows pass as they come. A file in order comes out in file order.

    O(log window) each.
    """
    heap: list[tuple[int, int, TraceRequest]] = []
    newest: int | None = None
    for row in rows:
        if isinstance(row, BadRow):
            yield row
        elif newest is not None and row.arrival_ns < newest:
            late_ms = (newest - row.arrival_ns) / 1e6
            message = (
                f"the row arrives {late_ms:g} ms before one that stands more than {window} rows above; "
                "sort the file first"
            )
            yield BadRow(row.line, "out_of_order", message)
        else:
            heapq.heappush(heap, (row.arrival_ns, row.line, row))
            if len(heap) > window:
                newest, _, oldest = heapq.heappop(heap)
                yield oldest
    heap.sort()
    for _, _, row in heap:
        yield row
