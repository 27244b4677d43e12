"""Recordings of a run: a header, then every call to the core with the decisions made in it. Written and read as streams.

One JSON object a line, gzip where the name ends in `.gz`. Content appears as dense ids: equal prefixes, block by block, get
equal ids, in order of first appearance; tokens themselves only where the recording was asked to keep them.
Knows files and the core's record types; knows no engine, no clock and no model.
"""

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from engine.core.config import CoreConfig
from engine.core.errors import TraceError
from engine.core.journal import Abort, Call, Commit, Expire, Schedule, Submit, Transferred
from engine.core.log import (
    Admitted,
    Copied,
    Ended,
    Evicted,
    Forked,
    Grew,
    Preempted,
    Record,
    Released,
    Reparented,
    SwapEnded,
    SwapStarted,
    Uncopied,
)

VERSION: Final = 3


class Header(Struct, frozen=True, tag="kilburn-recording", kw_only=True):
    """The first line."""

    version: int
    model: str
    config: CoreConfig
    config_hash: str
    """SHA-256 of the config's JSON, 16 hex digits."""
    has_tokens: bool
    hash_block_tokens: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    """Prompt tokens that each id of content stands for, where a replay of a trace was recorded: the trace's own ids, and
    generated tokens have none. 0: an id stands for a block of the pool, and generated tokens go on with the prompt.
    """


class _Stamp(Struct, tag="kilburn-recording"):
    """What every version's first line says of itself."""

    version: int


class Prompt(Struct, frozen=True, tag="prompt"):
    """Tokens of a request, ahead of its submission; only in recordings that keep tokens."""

    request: int
    tokens: tuple[int, ...]


class Tokens(Struct, frozen=True, tag="tokens"):
    """What a step sampled, ahead of its commit; only in recordings that keep tokens."""

    step: int
    tokens: tuple[int, ...]


class End(Struct, frozen=True, tag="close"):
    """The last line of a recording that was closed in order."""

    calls: int


Line = (
    Header | Prompt | Tokens | End
    | Submit | Abort | Expire | Schedule | Commit | Transferred
    | Admitted | Forked | Reparented | Grew | Copied | Uncopied | Evicted | Preempted
    | SwapStarted | SwapEnded | Released | Ended
)  # fmt: skip


def config_hash(config: CoreConfig) -> str:
    """First 16 hex digits of the SHA-256 of the config's JSON."""
    return hashlib.sha256(msgspec.json.encode(config)).hexdigest()[:16]


class Entry(Struct, frozen=True):
    """One call of a recording."""

    line: int
    """Where it stands in the file, from 1."""
    call: Call
    decisions: tuple[Record, ...]
    """What the core decided in it, in order."""


class RecordingReader:
    """Reads a recording as a stream; a context manager."""

    def __init__(self, path: Path) -> None:
        """Opens the file and reads its header.

        Raises:
            TraceError: there is no such file, or it is no recording of this version.
        """
        self.path = path
        self._line = 0
        try:
            raw = path.open("rb")
        except OSError as error:
            raise TraceError(f"cannot be read: {error.strerror}", file=str(path)) from error
        self._file = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        self._raw = raw
        self._decoder = msgspec.json.Decoder(Line)
        try:
            self.header = self._read_header()
        except TraceError:
            self.close()
            raise

    def __enter__(self) -> "RecordingReader":
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the file."""
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
        self._raw.close()

    def lines(self) -> Iterator[tuple[int, Line]]:
        """(line number, object) of every line that has not been read yet.

        Raises:
            TraceError: a line is corrupt, or the file ends before the line that closes a recording.
        """
        closed = False
        while data := self._next():
            if closed:
                raise self._error("there is something after the recording's last line")
            try:
                line = self._decoder.decode(data)
            except (msgspec.DecodeError, RecursionError) as error:
                raise self._error(f"not a line of a recording: {error}") from error
            closed = isinstance(line, End)
            yield self._line, line
        if not closed:
            raise self._error("the recording was cut short here: its closing line is missing")

    def entries(self) -> Iterator[Entry]:
        """Every call with its decisions, in order.

        Raises:
            TraceError: as `lines`; or calls are missing, or a decision stands before the first call.
        """
        at, expected = 0, 0
        call: Call | None = None
        decisions: list[Record] = []
        for number, line in self.lines():
            if isinstance(line, Call):
                if call is not None:
                    yield Entry(at, call, tuple(decisions))
                if line.call != expected:
                    raise self._error(f"call {line.call} stands where call {expected} should")
                at, call, decisions, expected = number, line, [], expected + 1
            elif isinstance(line, Record):
                if call is None:
                    raise self._error("a decision stands before the first call")
                decisions.append(line)
            elif isinstance(line, End) and line.calls != expected:
                raise self._error(f"{line.calls} calls were made, but {expected} are here")
            elif isinstance(line, Header):
                raise self._error("a second header")
        if call is not None:
            yield Entry(at, call, tuple(decisions))

    def _read_header(self) -> Header:
        data = self._next()
        if b'"kilburn-trace"' in data:
            raise self._error(
                "this is a trace, no recording; `kilburn replay TRACE --record FILE` makes one of it"
            )
        try:
            version = msgspec.json.decode(data, type=_Stamp).version
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._error(
                "this is no recording by `kilburn serve --record` or `kilburn replay --record`"
            ) from error
        if version != VERSION:
            raise self._error(
                f"the recording has version {version}; this program reads version {VERSION}"
            )
        try:
            return msgspec.json.decode(data, type=Header)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._error(f"the recording's settings make no sense: {error}") from error

    def _next(self) -> bytes:
        self._line += 1
        try:
            return self._file.readline()
        except (OSError, EOFError, zlib.error) as error:
            raise self._error(f"the file is damaged here: {error}") from error

    def _error(self, message: str) -> TraceError:
        return TraceError(message, file=str(self.path), line=self._line)
