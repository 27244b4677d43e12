"""Reader of CSV files that hold lengths and no times: every request comes at 0 until an arrival process is given. Streams.

Two spellings: Azure's columns with the text XXX for every time, and num_prefill_tokens with num_decode_tokens. Rows of the second may follow
the order of conversations; nothing says so in the file, so no sessions are made of them.
"""

from collections.abc import Iterator
from typing import Final

from traces.azure import COLUMNS as AZURE_COLUMNS
from traces.csv_fields import BadFieldError, find_columns, parse_count, row_fields
from traces.lines import Lines
from traces.schema import BadRow, Row, TraceRequest

COLUMNS: Final = ("num_prefill_tokens", "num_decode_tokens")
NO_TIME: Final = "XXX"


def is_timeless(header: bytes, first_row: bytes) -> bool:
    """Whether a file with this header and first row is one of lengths only."""
    if find_columns(header, COLUMNS) is not None:
        return True
    columns = find_columns(header, AZURE_COLUMNS)
    try:
        return columns is not None and row_fields(first_row, columns[0])[columns[1]] == NO_TIME
    except BadFieldError:
        return False


def read_lengths(lines: Lines) -> Iterator[Row]:
    """Yields each row in file order, all arriving at 0; blank lines are skipped. The first line must be a known header."""
    rows = iter(lines)
    _, header = next(rows)
    names = COLUMNS
    columns = find_columns(header, names)
    if columns is None:
        names = AZURE_COLUMNS[1:]
        columns = find_columns(header, names)
    assert columns is not None
    width, in_at, out_at = columns
    for number, line in rows:
        if not line.strip():
            continue
        try:
            fields = row_fields(line, width)
            num_prompt = parse_count(names[0], fields[in_at])
            num_output = parse_count(names[1], fields[out_at])
        except BadFieldError as error:
            yield BadRow(number, error.code, error.message)
        else:
            yield TraceRequest(number, 0, num_prompt, num_output)
