"""JSON lines to typed rows, with a sentence for each line that does not fit. Knows no format."""

from array import array
from collections.abc import Iterable, Iterator
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from traces.schema import MAX_TOKENS, NO_HASHES, BadRow

T = TypeVar("T")

Count = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
HashId = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


def decode_lines(
    lines: Iterable[tuple[int, bytes]], kind: type[T]
) -> Iterator[tuple[int, T | BadRow]]:
    """Yields (line number, row or why it is none) for each line that is not blank."""
    decoder = msgspec.json.Decoder(kind)
    for number, line in lines:
        if not line.strip():
            continue
        try:
            yield number, decoder.decode(line)
        except msgspec.ValidationError as error:
            yield number, BadRow(number, "bad_row", f"the row does not fit: {error}")
        except RecursionError:
            yield number, BadRow(number, "bad_row", "the row is nested too deeply")
        except (msgspec.DecodeError, UnicodeDecodeError):
            yield number, BadRow(number, "bad_row", "the row is not one JSON object")


def pack_hashes(ids: list[int]) -> "array[int]":
    """The ids as int64."""
    return array("q", ids) if ids else NO_HASHES
