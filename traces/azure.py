"""Reader of the Azure LLM inference traces: CSV with TIMESTAMP, ContextTokens and GeneratedTokens. Streams; keeps file order.

Columns are found by name, in any order and case; others are ignored. Source: Patel et al., Splitwise, ISCA 2024
(AzurePublicDataset).
"""

from collections.abc import Iterator
from typing import Final

from traces.csv_fields import BadFieldError, find_columns, parse_count, row_fields, shown
from traces.lines import Lines
from traces.schema import BadRow, Row, TraceRequest
from traces.timestamps import parse_timestamp_ns

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure(lines: Lines) -> Iterator[Row]:
    """Yields each row in file order, arrivals in nanoseconds since the year 1; blank lines are skipped.

    The first line must be a header with the three columns.
    """
    rows = iter(lines)
    columns = find_columns(next(rows)[1], COLUMNS)
    assert columns is not None
    width, time_at, in_at, out_at = columns
    for number, line in rows:
        if not line.strip():
            continue
        try:
            fields = row_fields(line, width)
            try:
                arrival_ns = parse_timestamp_ns(fields[time_at])
            except ValueError as error:
                message = f"TIMESTAMP {shown(fields[time_at])} {error}"
                raise BadFieldError("bad_timestamp", message) from None
            num_prompt = parse_count(COLUMNS[1], fields[in_at])
            num_output = parse_count(COLUMNS[2], fields[out_at])
        except BadFieldError as error:
            yield BadRow(number, error.code, error.message)
        else:
            yield TraceRequest(number, arrival_ns, num_prompt, num_output)
