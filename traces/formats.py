"""Opens a trace file: recognises its format by content, gives its requests in arrival order, counts its bad rows.

The name of a file decides nothing. Formats: `azure` (CSV), `mooncake` (JSON lines).
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from engine.core.errors import TraceError
from traces.azure import COLUMNS, is_azure_header, read_azure
from traces.lines import DamagedStreamError, Lines, decompress, read_chunks
from traces.mooncake import HASH_BLOCK_TOKENS, read_mooncake
from traces.order import in_order
from traces.schema import BadRow, TraceRequest

KEPT_BAD_ROWS: Final = 100
"""This many bad rows are kept for the report; all are counted."""
_HEAD_BYTES: Final = 1 << 16


class Trace:
    """One pass over a trace file. Counts are complete once `requests()` is exhausted.

    rows == requests given + sum of `bad_counts`.
    """

    def __init__(self, chunks: Iterable[bytes], name: str, *, strict: bool = False) -> None:
        """Reads the head of the file to recognise its format.

        Raises:
            TraceError: the file is empty, or no known format.
        """
        self.name = name
        self._strict = strict
        source = iter(chunks)
        read: list[bytes] = []
        try:
            head = self._first_line(read, source)
        except DamagedStreamError as error:
            raise TraceError(str(error), file=name) from None
        self._lines = Lines(chain(read, source))
        if is_azure_header(head):
            self.format = "azure"
            self.hash_block_tokens = 0
            """Tokens that one hash id covers; 0: the format has no ids."""
            rows = read_azure(self._lines, name)
        elif head.lstrip().startswith(b"{"):
            self.format = "mooncake"
            self.hash_block_tokens = HASH_BLOCK_TOKENS
            rows = read_mooncake(self._lines)
        elif not head.strip():
            raise TraceError("the file is empty", file=name)
        else:
            raise TraceError(
                f"the first line is neither a CSV header with {', '.join(COLUMNS)} nor a JSON object",
                file=name,
                line=1,
            )
        self._rows = in_order(self._with_damage(rows))
        self.origin_ns: int | None = None
        """First arrival on the format's own clock; None before it is read."""
        self.num_requests = 0
        self.bad_rows: list[BadRow] = []
        """The first `KEPT_BAD_ROWS`."""
        self.bad_counts: dict[str, int] = {}
        """By code."""

    @staticmethod
    def _first_line(read: list[bytes], source: Iterator[bytes]) -> bytes:
        """The first line that is not blank, or the first `_HEAD_BYTES` of it; what was consumed goes to `read`."""

        def tee() -> Iterator[bytes]:
            for chunk in source:
                read.append(chunk)
                yield chunk

        head = b""
        for data in decompress(tee()):
            head = (head + data).lstrip(b"\r\n")
            if b"\n" in head or len(head) >= _HEAD_BYTES:
                break
        return head.split(b"\n", 1)[0].removesuffix(b"\r")

    def _with_damage(
        self, rows: Iterator[TraceRequest | BadRow]
    ) -> Iterator[TraceRequest | BadRow]:
        yield from rows
        if self._lines.damage is not None:
            yield BadRow(self._lines.number + 1, "damaged_file", self._lines.damage)

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
        return self._lines.digest


def open_trace(path: Path, *, strict: bool = False) -> Trace:
    """The trace in a file.

    Raises:
        TraceError: the file is absent, unreadable, empty, or no known format.
    """
    return Trace(read_chunks(path), str(path), strict=strict)
