"""Reader and writer of Parquet traces: columns named as in the schema, the Azure, the Mooncake or the lengths files. Streams by batches.

A column of a wrong type spoils the file; a missing or out-of-range value spoils its row.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from engine.core.errors import TraceError
from traces.csv_fields import shown
from traces.json_rows import pack_hashes
from traces.mooncake import HASH_BLOCK_TOKENS, NS_PER_MS
from traces.native import MAX_BLOCK_TOKENS, NativeHeader
from traces.schema import MAX_ARRIVAL_NS, MAX_TOKENS, NO_HASHES, ROOT, BadRow, Row, TraceRequest
from traces.timestamps import parse_timestamp_ns

if TYPE_CHECKING:
    import polars as pl

BATCH_ROWS: Final = 16_384
MAGIC: Final = b"PAR1"
HASH_TOKENS_KEY: Final = "kilburn.hash_block_tokens"


class Spelling(NamedTuple):
    """Names of the columns in one family of files; an empty time: it has none."""

    time: str
    num_prompt: str
    num_output: str
    hash_block_tokens: int = 0


SPELLINGS: Final = (
    Spelling("arrival_ns", "num_prompt", "num_output"),
    Spelling("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    Spelling("timestamp", "input_length", "output_length", HASH_BLOCK_TOKENS),
    Spelling("", "num_prompt", "num_output"),
    Spelling("", "num_prefill_tokens", "num_decode_tokens"),
)
SESSION_COLUMNS: Final = ("session", "turn", "after", "think_ns")
_SESSION_DEFAULTS: Final = (ROOT, 0, ROOT, 0)


class ParquetTrace:
    """A Parquet file of requests."""

    def __init__(self, path: Path) -> None:
        """Reads the footer.

        Raises:
            TraceError: not Parquet, or its columns are none of the known spellings, or of a wrong type.
        """
        import polars as pl

        self._path = path
        with self._readable():
            self._frame = pl.scan_parquet(path)
            schema = self._frame.collect_schema()
            metadata = pl.read_parquet_metadata(path)
        names = set(schema)
        spelling = next((s for s in SPELLINGS if names.issuperset(filter(None, s[:3]))), None)
        if spelling is None:
            known = "; ".join(", ".join(filter(None, s[:3])) for s in SPELLINGS)
            raise TraceError(
                f"its columns are {', '.join(schema) or 'none'}; known sets are: {known}",
                file=str(path),
            )
        self._spelling = spelling
        self.has_arrivals = bool(spelling.time)
        self.hash_block_tokens = 0
        has_hashes = "hash_ids" in names
        if has_hashes:
            stored = metadata.get(HASH_TOKENS_KEY, "")
            self.hash_block_tokens = int(stored) if stored.isdigit() else spelling.hash_block_tokens
            if self.hash_block_tokens > MAX_BLOCK_TOKENS:
                message = f"a hash id covers {self.hash_block_tokens} tokens, expected at most {MAX_BLOCK_TOKENS}"
                raise TraceError(message, file=str(path))
        self._has_sessions = names.issuperset(SESSION_COLUMNS)
        self._check(schema, has_hashes)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Damage of the file becomes an error of ours, also where Polars panics, which is no `Exception`."""
        import polars as pl

        try:
            yield
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            told = str(error).partition("\n")[0]
            raise TraceError(f"cannot be read as Parquet: {told}", file=str(self._path)) from None

    def _check(self, schema: pl.Schema, has_hashes: bool) -> None:
        import polars as pl

        s = self._spelling
        integers = [s.num_prompt, s.num_output]
        if s.time == "arrival_ns":
            integers.append(s.time)
        if self._has_sessions:
            integers += SESSION_COLUMNS
        for name in integers:
            if not schema[name].is_integer():
                message = f"the column {name} holds {schema[name]}, expected integers"
                raise TraceError(message, file=str(self._path))
        hashes = schema["hash_ids"] if has_hashes else None
        inner = getattr(hashes, "inner", None)
        if has_hashes and not (isinstance(inner, pl.DataType) and inner.is_integer()):
            message = f"the column hash_ids holds {hashes}, expected lists of integers"
            raise TraceError(message, file=str(self._path))
        time = schema[s.time] if s.time else None
        if s.time == "TIMESTAMP" and not isinstance(time, (pl.Datetime, pl.String)):
            message = f"the column TIMESTAMP holds {time}, expected datetimes or text"
            raise TraceError(message, file=str(self._path))
        if s.time == "timestamp" and not (time is not None and time.is_numeric()):
            message = f"the column timestamp holds {time}, expected numbers of milliseconds"
            raise TraceError(message, file=str(self._path))

    def rows(self) -> Iterator[Row]:
        """Yields each row in file order, `line` counting them from 1."""
        import polars as pl

        s = self._spelling
        nothing = pl.lit(None, pl.Int64)
        time = pl.col(s.time) if s.time else pl.lit(0, pl.Int64)
        parse: Callable[[Any], int] = int
        if s.time == "TIMESTAMP":
            if isinstance(self._frame.collect_schema()[s.time], pl.Datetime):
                time = time.dt.timestamp("ns")
            else:
                parse = parse_timestamp_ns
        elif s.time == "timestamp":
            parse = _ms_to_ns
        columns = [
            time.alias("time"),
            pl.col(s.num_prompt).alias("num_prompt"),
            pl.col(s.num_output).alias("num_output"),
            (pl.col("hash_ids") if self.hash_block_tokens else nothing).alias("hash_ids"),
            *(pl.col(name) for name in SESSION_COLUMNS if self._has_sessions),
        ]
        frame = self._frame.select(columns)
        line = 0
        while True:
            with self._readable():
                batch = frame.slice(line, BATCH_ROWS).collect()
            for values in batch.iter_rows():
                line += 1
                yield _row(line, parse, values)
            if len(batch) < BATCH_ROWS:
                return

    def digest(self) -> str:
        """SHA-256 of the file, in hex."""
        with self._path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def _ms_to_ns(milliseconds: float) -> int:
    return round(milliseconds * NS_PER_MS)


def _row(line: int, parse: Callable[[Any], int], values: tuple[Any, ...]) -> Row:
    time, num_prompt, num_output, hash_ids, *rest = values
    try:
        arrival_ns = parse(time)
    except (ValueError, TypeError, OverflowError) as error:
        reason = error if isinstance(time, str) else "is not a time"
        return BadRow(line, "bad_timestamp", f"the time {shown(str(time))} {reason}")
    if not -MAX_ARRIVAL_NS <= arrival_ns <= 32 * MAX_ARRIVAL_NS:
        return BadRow(line, "bad_timestamp", f"the time {shown(str(time))} is out of range")
    for name, count in (("prompt", num_prompt), ("output", num_output)):
        if count is None or not 0 <= count <= MAX_TOKENS:
            message = f"the number of {name} tokens is {count}, expected 0 to {MAX_TOKENS}"
            return BadRow(line, "bad_tokens", message)
    session, turn, after, think_ns = (
        default if value is None else value
        for value, default in zip(rest or _SESSION_DEFAULTS, _SESSION_DEFAULTS, strict=True)
    )
    if after >= 0 and (session < 0 or after >= turn or think_ns < 0):
        message = f"after is {after}, expected a turn of the same session before turn {turn}"
        return BadRow(line, "bad_row", message)
    try:
        packed = pack_hashes(hash_ids) if hash_ids else NO_HASHES
    except (TypeError, OverflowError):
        return BadRow(line, "bad_row", "hash_ids has a value that is no 64-bit integer")
    return TraceRequest(
        line, arrival_ns, num_prompt, num_output, packed, session, turn, after, think_ns
    )


def write_parquet(header: NativeHeader, requests: Iterable[TraceRequest], path: Path) -> int:
    """Writes the requests with the schema's columns, and the header as metadata; how many. All are held in memory.

    Raises:
        OSError: the file cannot be written.
    """
    import numpy as np
    import polars as pl

    names = ["arrival_ns", "num_prompt", "num_output", *SESSION_COLUMNS]
    columns = {name: array("q") for name in names}
    hashes = array("q")
    hash_counts = array("q")
    for row in requests:
        for name, column in columns.items():
            column.append(getattr(row, name))
        hashes.extend(row.hash_ids)
        hash_counts.append(len(row.hash_ids))
    data: dict[str, Any] = {
        name: np.frombuffer(column, np.int64) for name, column in columns.items()
    }
    if not header.has_arrivals:
        del data["arrival_ns"]
    if header.hash_block_tokens:
        counts = np.frombuffer(hash_counts, np.int64)
        owner = np.repeat(np.arange(len(counts)), counts)
        owned = pl.DataFrame({"row": owner, "hash_ids": np.frombuffer(hashes, np.int64)})
        lists = owned.group_by("row", maintain_order=True).agg("hash_ids")
        every = pl.DataFrame({"row": np.arange(len(counts))}).join(
            lists, on="row", how="left", maintain_order="left"
        )
        data["hash_ids"] = every["hash_ids"].fill_null(pl.lit([], pl.List(pl.Int64)))
    frame = pl.DataFrame(data)
    metadata = {HASH_TOKENS_KEY: str(header.hash_block_tokens)}
    frame.write_parquet(path, metadata=metadata, row_group_size=BATCH_ROWS)
    return len(hash_counts)
