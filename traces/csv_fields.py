"""Fields of one CSV line, and token counts in them. Knows no columns.

A quoted field never reaches over a line end, so a stray quote spoils one row and not the rest of the file.
"""

import csv
from collections.abc import Sequence

from traces.schema import MAX_TOKENS


class BadFieldError(Exception):
    """A field that cannot be used: the code and the sentence of its `BadRow`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def shown(text: str) -> str:
    """A field's text for a message: quoted, cut at 40 characters."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def split_fields(line: bytes) -> list[str]:
    """Fields of one CSV line, quotes and outer spaces removed.

    Raises:
        BadFieldError: a quote is opened and not closed, or closed in mid-field.
    """
    text = line.decode("utf-8", errors="replace")
    if '"' not in text:
        return [field.strip() for field in text.split(",")]
    try:
        rows = list(csv.reader([text], strict=True, skipinitialspace=True))
    except csv.Error:
        raise BadFieldError("bad_row", "a quoted field is not closed properly") from None
    return [field.strip() for field in rows[0]]


def find_columns(header: bytes, wanted: Sequence[str]) -> tuple[int, ...] | None:
    """(number of columns, place of each of `wanted`) in a header line, whatever their case; None where one is missing."""
    try:
        names = [field.casefold() for field in split_fields(header)]
        return len(names), *(names.index(column.casefold()) for column in wanted)
    except (BadFieldError, ValueError):
        return None


def row_fields(line: bytes, width: int) -> list[str]:
    """Fields of a row, as many as the header has.

    Raises:
        BadFieldError: more or fewer than `width`, or a broken quote.
    """
    fields = split_fields(line)
    if len(fields) != width:
        raise BadFieldError("bad_row", f"the row has {len(fields)} fields, the header has {width}")
    return fields


def parse_count(name: str, text: str) -> int:
    """A token count.

    Raises:
        BadFieldError: not a whole number from 0 to `MAX_TOKENS`.
    """
    if text.isascii() and text.isdigit() and len(text) <= 10 and (count := int(text)) <= MAX_TOKENS:
        return count
    raise BadFieldError(
        "bad_tokens", f"{name} is {shown(text)}, expected a whole number from 0 to {MAX_TOKENS}"
    )
