"""Kilburn's own trace format: JSON lines, a header first; every field of the schema, defaults left out. Streams both ways.

The header says how many tokens one hash id covers and whether the requests have arrival times.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from traces.json_rows import Count, HashId, decode_lines, pack_hashes
from traces.lines import Lines
from traces.schema import MAX_ARRIVAL_NS, ROOT, BadRow, Row, TraceRequest

VERSION: Final = 1
MAX_BLOCK_TOKENS: Final = 1 << 20
"""Most that one hash id may cover, as for recorded sessions."""

Ns = Annotated[int, Meta(ge=0, le=MAX_ARRIVAL_NS)]


class NativeHeader(Struct, frozen=True, kw_only=True, tag_field="format", tag="kilburn-trace"):
    """The first line."""

    version: Literal[1] = VERSION
    hash_block_tokens: Annotated[int, Meta(ge=0, le=MAX_BLOCK_TOKENS)] = 0
    has_arrivals: bool = True


class NativeRow(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Every other line; the fields of `TraceRequest`."""

    arrival_ns: Ns
    num_prompt: Count
    num_output: Count
    hash_ids: list[HashId] = []
    session: Annotated[int, Meta(ge=ROOT)] = ROOT
    turn: Annotated[int, Meta(ge=0)] = 0
    after: Annotated[int, Meta(ge=ROOT)] = ROOT
    think_ns: Ns = 0


def read_native(lines: Lines) -> Iterator[Row]:
    """Yields each row in file order; the first line must be a header."""
    rows = iter(lines)
    next(rows)
    for number, row in decode_lines(rows, NativeRow):
        if isinstance(row, BadRow):
            yield row
        elif row.after >= 0 and (row.session < 0 or row.after >= row.turn):
            message = (
                f"after is {row.after}, expected a turn of the same session before turn {row.turn}"
            )
            yield BadRow(number, "bad_row", message)
        else:
            hash_ids = pack_hashes(row.hash_ids)
            yield TraceRequest(
                number,
                row.arrival_ns,
                row.num_prompt,
                row.num_output,
                hash_ids,
                row.session,
                row.turn,
                row.after,
                row.think_ns,
            )


def write_native(header: NativeHeader, requests: Iterable[TraceRequest]) -> Iterator[bytes]:
    """Yields the file's lines, ends included."""
    encoder = msgspec.json.Encoder()
    yield encoder.encode(header) + b"\n"
    for row in requests:
        yield (
            encoder.encode(
                NativeRow(
                    row.arrival_ns,
                    row.num_prompt,
                    row.num_output,
                    row.hash_ids.tolist(),
                    row.session,
                    row.turn,
                    row.after,
                    row.think_ns,
                )
            )
            + b"\n"
        )
