"""Reads a whole trace, or a recording of clients, for its figures. Prints nothing.

What the figures mean is said where they are computed: `traces.stats`, `traces.reuse`, `traces.servegen`.
"""

import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from rich.console import Group

from engine.core.errors import ConfigError, TraceError
from traces.formats import open_trace
from traces.lines import Lines, read_chunks
from traces.render import bad_rows, render_mix, render_stats
from traces.report import numbers
from traces.reuse import PrefixReuse, ReuseCollector
from traces.schema import BadRow, TraceRequest
from traces.servegen import MixStats, is_clients, mix_stats, read_clients
from traces.stats import StatsCollector, TraceStats

Watch = Callable[[Iterable[TraceRequest]], Iterable[TraceRequest]]


class TraceFigures(Struct, frozen=True, kw_only=True):
    """Everything that is known of a trace."""

    kind: str = "trace"
    name: str
    format: str
    sha256: str
    """Of the decompressed bytes, up to where reading stopped."""
    rows: int
    bad: dict[str, int]
    bad_rows: list[BadRow]
    stats: TraceStats
    reuse: PrefixReuse | None
    """None where the trace has no block ids."""


class MixFigures(Struct, frozen=True, kw_only=True):
    """Everything that is known of a recording of clients."""

    kind: str = "clients"
    name: str
    stats: MixStats


class Found(NamedTuple):
    """Figures, and the same for a terminal."""

    figures: TraceFigures | MixFigures
    summary: Group


def is_client_recording(path: Path) -> bool:
    """Whether a file's first line looks like a client of a ServeGen recording.

    Raises:
        TraceError: the file cannot be read.
    """
    _, first = next(iter(Lines(read_chunks(path))), (1, b""))
    return is_clients(first)


def survey_trace(
    path: Path,
    *,
    lru: str = "",
    limit: int | None = None,
    strict: bool = False,
    watch: Watch = iter,
) -> Found:
    """The figures of a file.

    Args:
        path: A trace of any format, or a ServeGen recording.
        lru: Sizes of LRU caches in blocks, with commas.
        limit: Look at the first so many requests only.
        strict: Refuse a trace with a bad row.
        watch: Sees the requests as they pass.

    Raises:
        TraceError: the file cannot be read, is no known format, has no requests, or under `strict` a bad row.
        ConfigError: `lru` or `limit` is out of range.
    """
    capacities = _sizes(lru)
    if limit is not None and not 1 <= limit <= sys.maxsize:
        raise ConfigError(f"--limit is {limit}, expected at least 1 and at most {sys.maxsize}")
    if is_client_recording(path):
        mix = mix_stats(read_clients(path))
        head = f"{path.name}, a recording of API clients"
        return Found(MixFigures(name=path.name, stats=mix), render_mix(head, mix))
    trace = open_trace(path, strict=strict)
    collector = StatsCollector()
    requests: Iterable[TraceRequest] = islice(trace.requests(), limit)
    requests = collector.watch(requests)
    reuse = None
    if trace.hash_block_tokens:
        reuse = ReuseCollector(trace.hash_block_tokens, capacities)
        requests = reuse.watch(requests)
    for _ in watch(requests):
        pass
    num_bad = sum(trace.bad_counts.values())
    if not trace.num_requests:
        reason = f"; line {trace.bad_rows[0].line}: {trace.bad_rows[0].message}" if num_bad else ""
        raise TraceError(f"the trace has no requests{reason}", file=str(path))
    figures = TraceFigures(
        name=path.name,
        format=trace.format,
        sha256=trace.digest,
        rows=trace.num_requests + num_bad,
        bad=trace.bad_counts,
        bad_rows=trace.bad_rows,
        stats=collector.figures(has_arrivals=trace.has_arrivals),
        reuse=reuse.figures() if reuse is not None else None,
    )
    head = f"{figures.name} ({figures.format}), {numbers.counted(figures.rows, 'row')}, sha256 {figures.sha256[:12]}"
    summary = Group(
        *bad_rows(trace.bad_rows, num_bad, figures.rows),
        render_stats(head, figures.stats, figures.reuse),
    )
    return Found(figures, summary)


def _sizes(text: str) -> list[int]:
    sizes = []
    for part in filter(None, text.split(",")):
        if not (part.strip().isascii() and part.strip().isdigit() and int(part) > 0):
            raise ConfigError(f"--lru: {part!r} must be a whole number of blocks, at least 1")
        sizes.append(int(part))
    return sizes
