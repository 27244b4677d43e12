"""Reader of the Mooncake traces: JSON lines with timestamp (ms), input_length, output_length and hash_ids. Streams.

An id stands for the whole prefix that ends with its 512-token block; the last, partly filled block has an id too. Source: Qin et
al., Mooncake, FAST 2025.
"""

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from traces.lines import Lines
from traces.schema import MAX_TOKENS, BadRow, TraceRequest

HASH_BLOCK_TOKENS: Final = 512
NS_PER_MS: Final = 1_000_000

Count = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


class MooncakeRow(Struct, frozen=True):
    """One line, as the file spells it."""

    timestamp: Annotated[float, Meta(ge=0, le=1e12)] | Annotated[int, Meta(ge=0, le=10**12)]
    """Milliseconds from the start."""
    input_length: Count
    output_length: Count
    hash_ids: tuple[int, ...] = ()


def read_mooncake(lines: Lines) -> Iterator[TraceRequest | BadRow]:
    """Yields each row in file order, arrivals in nanoseconds from the file's zero; blank lines are skipped."""
    decoder = msgspec.json.Decoder(MooncakeRow)
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except msgspec.ValidationError as error:
            yield BadRow(number, "bad_row", f"the row does not fit: {error}")
            continue
        except (msgspec.DecodeError, UnicodeDecodeError):
            yield BadRow(number, "bad_row", "the row is not one JSON object")
            continue
        blocks = -(-row.input_length // HASH_BLOCK_TOKENS)
        if row.hash_ids and len(row.hash_ids) != blocks:
            yield BadRow(
                number,
                "bad_row",
                f"hash_ids has {len(row.hash_ids)} ids, {row.input_length} tokens have {blocks} blocks "
                f"of {HASH_BLOCK_TOKENS}",
            )
            continue
        arrival_ns = round(row.timestamp * NS_PER_MS)
        yield TraceRequest(number, arrival_ns, row.input_length, row.output_length, row.hash_ids)
