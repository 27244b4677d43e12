"""Reader of the Mooncake traces: JSON lines with timestamp (ms), input_length, output_length and hash_ids. Streams.

An id stands for the whole prefix that ends with its 512-token block; the last, partly filled block has an id too. Source: Qin et
al., Mooncake, FAST 2025.
"""

from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta, Struct

from traces.json_rows import Count, HashId, decode_lines, pack_hashes
from traces.lines import Lines
from traces.schema import BadRow, Row, TraceRequest

HASH_BLOCK_TOKENS: Final = 512
NS_PER_MS: Final = 1_000_000


class MooncakeRow(Struct, frozen=True):
    """One line, as the file spells it."""

    timestamp: Annotated[float, Meta(ge=0, le=1e12)] | Annotated[int, Meta(ge=0, le=10**12)]
    """Milliseconds from the start."""
    input_length: Count
    output_length: Count
    hash_ids: list[HashId] = []


def read_mooncake(lines: Lines) -> Iterator[Row]:
    """Yields each row in file order, arrivals in nanoseconds from the file's zero; blank lines are skipped."""
    for number, row in decode_lines(lines, MooncakeRow):
        if isinstance(row, BadRow):
            yield row
            continue
        blocks = -(-row.input_length // HASH_BLOCK_TOKENS)
        if row.hash_ids and len(row.hash_ids) != blocks:
            message = (
                f"hash_ids has {len(row.hash_ids)} ids, {row.input_length} tokens have {blocks} blocks "
                f"of {HASH_BLOCK_TOKENS}"
            )
            yield BadRow(number, "bad_row", message)
            continue
        yield TraceRequest(
            number,
            round(row.timestamp * NS_PER_MS),
            row.input_length,
            row.output_length,
            pack_hashes(row.hash_ids),
        )
