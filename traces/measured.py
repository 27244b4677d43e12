"""Reader of measured runs: JSON lines with timestamp_ns, lengths, an id for each full 16-token block, and the engine's times.

Arrivals are the scheduled ones. The engine's own times are what a prediction is compared with; the twin does not see them.
"""

from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta, Struct

from traces.json_rows import Count, HashId, decode_lines, pack_hashes
from traces.lines import Lines
from traces.schema import MAX_ARRIVAL_NS, BadRow, Row, TraceRequest

HASH_BLOCK_TOKENS: Final = 16


class MeasuredRow(Struct, frozen=True):
    """One line, as the file spells it; the engine's times stay behind."""

    timestamp_ns: Annotated[int, Meta(ge=0, le=MAX_ARRIVAL_NS)]
    input_length: Count
    output_length: Count
    hash_ids: list[HashId] = []


def read_measured(lines: Lines) -> Iterator[Row]:
    """Yields each row in file order, arrivals as scheduled; blank lines are skipped."""
    for number, row in decode_lines(lines, MeasuredRow):
        if isinstance(row, BadRow):
            yield row
            continue
        blocks = row.input_length // HASH_BLOCK_TOKENS
        if row.hash_ids and len(row.hash_ids) != blocks:
            message = (
                f"hash_ids has {len(row.hash_ids)} ids, {row.input_length} tokens have {blocks} full blocks "
                f"of {HASH_BLOCK_TOKENS}"
            )
            yield BadRow(number, "bad_row", message)
            continue
        hash_ids = pack_hashes(row.hash_ids)
        yield TraceRequest(number, row.timestamp_ns, row.input_length, row.output_length, hash_ids)
