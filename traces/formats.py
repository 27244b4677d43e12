"""Opens a trace file: recognises its format by content, gives its requests in arrival order, counts its bad rows.

The name of a file decides nothing. CSV: `azure`, `lengths`. JSON lines: `mooncake`, `measured`, `sessions`, `kilburn`,
`recording`. And `parquet`.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from engine.core.errors import TraceError
from traces import azure, lengths, measured, mooncake, parquet
from traces.csv_fields import find_columns, shown
from traces.lines import BOM, DamagedStreamError, Lines, decompress, read_chunks
from traces.native import NativeHeader, read_native
from traces.order import in_order, usable
from traces.recorded import read_recording, version_message
from traces.recording import Header
from traces.schema import BadRow, Row, TraceRequest
from traces.servegen import is_clients
from traces.sessions import read_sessions

KEPT_BAD_ROWS: Final = 100
"""This many bad rows are kept for the report; all are counted."""
_HEAD_BYTES: Final = 1 << 16


class Trace:
    """One pass over a trace. Counts are complete once `requests()` is exhausted.

    `num_requests + sum(bad_counts.values())` is the number of rows read.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        *,
        name: str,
        kind: str,
        digest: Callable[[], str],
        hash_block_tokens: int = 0,
        has_arrivals: bool = True,
        strict: bool = False,
    ) -> None:
        """Takes the rows as they stand in the file.

        Args:
            rows: As a format's reader yields them.
            name: Of the file, for messages.
            kind: Of the format.
            digest: Gives the SHA-256 of what has been read.
            hash_block_tokens: Tokens that one hash id covers; 0: there are none.
            has_arrivals: False: the times mean nothing, an arrival process must be supplied.
            strict: Raise at the first bad row.
        """
        self.name = name
        self.format = kind
        self.hash_block_tokens = hash_block_tokens
        self.has_arrivals = has_arrivals
        self.origin_ns: int | None = None
        """First arrival on the format's own clock; None before it is read."""
        self.num_requests = 0
        self.bad_rows: list[BadRow] = []
        """The first `KEPT_BAD_ROWS`."""
        self.bad_counts: dict[str, int] = {}
        """By code."""
        self._rows = usable(in_order(rows))
        self._digest = digest
        self._strict = strict

    def requests(self) -> Iterator[TraceRequest]:
        """Yields the requests in arrival order, arrivals from the first.

        Raises:
            TraceError: under `strict`, at the first bad row.
        """
        for row in self._rows:
            if isinstance(row, TraceRequest):
                self.num_requests += 1
                if self.origin_ns is None:
                    self.origin_ns = row.arrival_ns
                if self.origin_ns:
                    row = replace(row, arrival_ns=row.arrival_ns - self.origin_ns)
                yield row
                continue
            if self._strict:
                raise TraceError(row.message, file=self.name, line=row.line)
            self.bad_counts[row.code] = self.bad_counts.get(row.code, 0) + 1
            if len(self.bad_rows) < KEPT_BAD_ROWS:
                self.bad_rows.append(row)

    @property
    def digest(self) -> str:
        """SHA-256 of the decompressed bytes read so far: of the whole file once `requests()` is exhausted."""
        return self._digest()


def open_trace(path: Path, *, strict: bool = False) -> Trace:
    """The trace in a file.

    Raises:
        TraceError: the file is absent, unreadable, empty, or no known format.
    """
    chunks = read_chunks(path)
    first = next(chunks, b"")
    if not first.startswith(parquet.MAGIC):
        return read_trace(chain([first], chunks), str(path), strict=strict)
    table = parquet.ParquetTrace(path)
    return Trace(
        table.rows(),
        name=str(path),
        kind="parquet",
        digest=table.digest,
        hash_block_tokens=table.hash_block_tokens,
        has_arrivals=table.has_arrivals,
        strict=strict,
    )


def read_trace(chunks: Iterable[bytes], name: str, *, strict: bool = False) -> Trace:
    """The trace in a stream of text, plain or gzip.

    Raises:
        TraceError: the stream is empty, or no known format.
    """
    source = iter(chunks)
    read: list[bytes] = []
    try:
        head, second = _first_lines(read, source)
    except DamagedStreamError as error:
        raise TraceError(str(error), file=name) from None
    lines = Lines(chain(read, source))
    reader, settings = _recognise(head, second, name)
    return Trace(
        _with_damage(reader(lines), lines),
        name=name,
        digest=lambda: lines.digest,
        strict=strict,
        **settings,
    )


def _recognise(
    head: bytes, second: bytes, name: str
) -> tuple[Callable[[Lines], Iterator[Row]], dict[str, Any]]:
    """The reader for a file with these first lines, and what is known of its rows."""
    if lengths.is_timeless(head, second):
        return lengths.read_lengths, {"kind": "lengths", "has_arrivals": False}
    if find_columns(head, azure.COLUMNS) is not None:
        return azure.read_azure, {"kind": "azure"}
    if not head.strip() and not second.strip():
        raise TraceError("the file is empty, or begins with blank lines", file=name)
    if not head.lstrip().startswith(b"{"):
        raise TraceError(
            f"the first line is {shown(head.decode('utf-8', errors='replace'))}; expected a CSV header with "
            f"{', '.join(azure.COLUMNS)} or with {', '.join(lengths.COLUMNS)}, or a JSON object",
            file=name,
            line=1,
        )
    if b'"kilburn-recording"' in head:
        return _recording(head, name)
    if b'"kilburn-trace"' in head:
        try:
            header = msgspec.json.decode(head, type=NativeHeader)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise TraceError(f"the header does not fit: {error}", file=name, line=1) from None
        return read_native, {
            "kind": "kilburn",
            "hash_block_tokens": header.hash_block_tokens,
            "has_arrivals": header.has_arrivals,
        }
    if b'"hash_id_scope"' in head or b'"requests"' in head:
        block_size = _number_after(b'"block_size"', head)
        return lambda lines: read_sessions(lines, block_size), {
            "kind": "sessions",
            "has_arrivals": False,
            "hash_block_tokens": block_size,
        }
    if is_clients(head):
        raise TraceError(
            "this is a recording of API clients, which holds no requests; make a trace from it: "
            f"kilburn trace synth OUT.jsonl --clients {name}",
            file=name,
        )
    if b'"timestamp_ns"' in head:
        block = measured.HASH_BLOCK_TOKENS
        return measured.read_measured, {"kind": "measured", "hash_block_tokens": block}
    block = mooncake.HASH_BLOCK_TOKENS
    return mooncake.read_mooncake, {"kind": "mooncake", "hash_block_tokens": block}


def _recording(head: bytes, name: str) -> tuple[Callable[[Lines], Iterator[Row]], dict[str, Any]]:
    try:
        header = msgspec.json.decode(head, type=Header)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(f"the header does not fit: {error}", file=name, line=1) from None
    if (message := version_message(header)) is not None:
        raise TraceError(message, file=name, line=1)
    return lambda lines: read_recording(lines, header), {
        "kind": "recording",
        "hash_block_tokens": header.hash_block_tokens or header.config.memory.block_size,
    }


def _number_after(key: bytes, text: bytes) -> int:
    digits = text.partition(key)[2].lstrip(b" :")
    number = digits[: len(digits) - len(digits.lstrip(b"0123456789"))]
    return int(number or b"0")


def _first_lines(read: list[bytes], source: Iterator[bytes]) -> tuple[bytes, bytes]:
    """The first two lines, as far as `_HEAD_BYTES` show them; what was consumed goes to `read`."""

    def tee() -> Iterator[bytes]:
        for chunk in source:
            read.append(chunk)
            yield chunk

    head = b""
    for data in decompress(tee()):
        head += data
        if head.count(b"\n") > 1 or len(head) >= _HEAD_BYTES:
            break
    first, _, rest = head.partition(b"\n")
    return first.removeprefix(BOM).removesuffix(b"\r"), rest.partition(b"\n")[0].removesuffix(b"\r")


def _with_damage(rows: Iterator[Row], lines: Lines) -> Iterator[Row]:
    yield from rows
    if lines.damage is not None:
        yield BadRow(lines.number + 1, "damaged_file", lines.damage)
