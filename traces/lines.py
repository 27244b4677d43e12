"""Bytes of a trace file, plain or gzip, to numbered lines, streaming. Knows no columns.

The digest is of the decompressed bytes, so a file and its gzip are one trace. A stream that breaks off keeps the whole lines
before the break.
"""

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from engine.core.errors import TraceError

CHUNK_BYTES: Final = 1 << 18
GZIP_MAGIC: Final = b"\x1f\x8b"
BOM: Final = b"\xef\xbb\xbf"


class DamagedStreamError(Exception):
    """Compressed bytes that cannot be read on; the message is half a sentence."""


def read_chunks(path: Path) -> Iterator[bytes]:
    """The file's bytes in pieces of at most `CHUNK_BYTES`.

    Raises:
        TraceError: the file is absent, a folder, or unreadable.
    """
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except FileNotFoundError:
        raise TraceError("there is no such file", file=str(path)) from None
    except IsADirectoryError:
        raise TraceError("this is a folder, not a trace file", file=str(path)) from None
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}", file=str(path)) from error


def decompress(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, gunzipped where the first two say gzip, whatever the file is called. Several members are joined.

    Raises:
        DamagedStreamError: the gzip data is corrupt, ends early, or is followed by something else.
    """
    source = iter(chunks)
    head = b""
    for chunk in source:
        head += chunk
        if len(head) >= len(GZIP_MAGIC):
            break
    if not head.startswith(GZIP_MAGIC):
        if head:
            yield head
        yield from source
        return
    member = zlib.decompressobj(wbits=31)
    data = head
    while True:
        try:
            out = member.decompress(data)
        except zlib.error as error:
            raise DamagedStreamError(f"the gzip data is corrupt ({error})") from None
        if out:
            yield out
        data = member.unused_data if member.eof else b""
        if member.eof:
            data = data.lstrip(b"\0")
            while len(data) < len(GZIP_MAGIC):
                more = next(source, None)
                if more is None:
                    break
                data = (data + more).lstrip(b"\0")
            if not data:
                return
            if not data.startswith(GZIP_MAGIC):
                raise DamagedStreamError("the gzip data is followed by something that is not gzip")
            member = zlib.decompressobj(wbits=31)
            continue
        chunk_or_end = next(source, None)
        if chunk_or_end is None:
            raise DamagedStreamError("the gzip data ends early")
        data = chunk_or_end


class Lines:
    """Numbered lines of a byte stream, without their ends (LF or CRLF) and a byte order mark; one pass."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._sha256 = hashlib.sha256()
        self.number = 0
        """Of the last line given; from 1."""
        self.damage: str | None = None
        """Why the stream broke off, if it did; known once the lines are exhausted."""

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        pending: list[bytes] = []
        try:
            for chunk in decompress(self._chunks):
                self._sha256.update(chunk)
                first, *rest = chunk.split(b"\n")
                pending.append(first)
                if not rest:
                    continue
                yield self._line(b"".join(pending))
                for line in rest[:-1]:
                    yield self._line(line)
                pending = [rest[-1]]
        except DamagedStreamError as error:
            self.damage = str(error)
            return
        last = b"".join(pending)
        if last:
            yield self._line(last)

    def _line(self, line: bytes) -> tuple[int, bytes]:
        self.number += 1
        if self.number == 1:
            line = line.removeprefix(BOM)
        return self.number, line.removesuffix(b"\r")

    @property
    def digest(self) -> str:
        """SHA-256 of what was read so far, decompressed, in hex."""
        return self._sha256.hexdigest()
