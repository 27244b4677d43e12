"""Reader of the Azure LLM inference traces: CSV with TIMESTAMP, ContextTokens and GeneratedTokens. Streams; keeps file order.

Columns are found by name, in any order and case; others are ignored. A quoted field never reaches over a line end, so a stray
quote spoils one row. Source: Patel et al., Splitwise, ISCA 2024 (AzurePublicDataset).
"""

import csv
from collections.abc import Iterator
from typing import Final

from engine.core.errors import TraceError
from traces.lines import Lines
from traces.schema import MAX_TOKENS, BadRow, TraceRequest
from traces.timestamps import parse_timestamp_ns

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BOM: Final = b"\xef\xbb\xbf"


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


def is_azure_header(line: bytes) -> bool:
    """Whether the first line of a file names this format's columns."""
    try:
        names = {field.casefold() for field in split_fields(line.removeprefix(_BOM))}
    except BadFieldError:
        return False
    return names.issuperset(column.casefold() for column in COLUMNS)


def read_azure(lines: Lines, file: str) -> Iterator[TraceRequest | BadRow]:
    """Yields each row in file order, arrivals in nanoseconds since the year 1; blank lines are skipped.

    Raises:
        TraceError: the file is empty or its first line lacks a column.
    """
    rows = iter(lines)
    number, header = next(rows, (1, b""))
    if not is_azure_header(header):
        raise TraceError(
            f"the first line must name the columns {', '.join(COLUMNS)}; it is "
            f"{shown(header.decode('utf-8', errors='replace'))}",
            file=file,
            line=number,
        )
    names = [field.casefold() for field in split_fields(header.removeprefix(_BOM))]
    time_at, in_at, out_at = (names.index(column.casefold()) for column in COLUMNS)
    for number, line in rows:
        if not line.strip():
            continue
        try:
            fields = split_fields(line)
            if len(fields) != len(names):
                raise BadFieldError(
                    "bad_row", f"the row has {len(fields)} fields, the header has {len(names)}"
                )
            try:
                arrival_ns = parse_timestamp_ns(fields[time_at])
            except ValueError as error:
                raise BadFieldError(
                    "bad_timestamp", f"TIMESTAMP {shown(fields[time_at])} {error}"
                ) from None
            num_prompt = parse_count(COLUMNS[1], fields[in_at])
            num_output = parse_count(COLUMNS[2], fields[out_at])
        except BadFieldError as error:
            yield BadRow(number, error.code, error.message)
        else:
            yield TraceRequest(number, arrival_ns, num_prompt, num_output)
