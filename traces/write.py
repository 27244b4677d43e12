"""Writes requests to a file, in the format that its name says. Knows no readers.

A file appears whole or not at all: it is written beside its place and moved there.
"""

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from engine.core.errors import ConfigError
from traces.native import NativeHeader, write_native
from traces.parquet import write_parquet
from traces.schema import TraceRequest

SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".parquet")


def write_trace(header: NativeHeader, requests: Iterable[TraceRequest], path: Path) -> int:
    """How many requests were written.

    Raises:
        ConfigError: the name ends in none of `SUFFIXES`, or the file cannot be written.
        ServeError: whatever `requests` raises; no file is left then.
    """
    if not path.name.endswith(SUFFIXES):
        raise ConfigError(f"{path}: the name must end in one of {', '.join(SUFFIXES)}")
    part = path.with_name(path.name + ".part")
    try:
        if path.suffix == ".parquet":
            count = write_parquet(header, requests, part)
        else:
            count = _write_lines(header, requests, part, packed=path.suffix == ".gz")
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
    return count


def _write_lines(
    header: NativeHeader, requests: Iterable[TraceRequest], path: Path, *, packed: bool
) -> int:
    count = -1
    with path.open("wb") as raw:
        file = gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) if packed else raw
        with file:
            for line in write_native(header, requests):
                file.write(line)
                count += 1
    return count
