"""The fewest replicas that each window of time would need by itself: what scaling by windows could come to. `bound.py` has what nothing beats.

The requests of a window run on an empty fleet, from its beginning to the last one's end, so nothing is left over from the window before, neither work nor
cached prefixes; and they keep the promises among themselves, so no window pays for another's misses.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from sim.plan.trial import Filter, run_judged
from sim.report.figures import Resolved
from traces.formats import open_trace
from traces.schema import TraceRequest
from traces.shaping import hash_block_tokens, shaped
from traces.slo import Slo


class Windows(Struct, frozen=True, kw_only=True):
    """A stretch of windows of one length."""

    length_ns: int
    first: int
    """Number of the first, from 0 at the first arrival."""
    end: int
    """Number after the last."""
    most: int
    """Replicas: no window takes more."""


class WindowCounts(Struct, frozen=True, kw_only=True):
    """By window."""

    requests: list[int]
    replicas: list[int]
    """0 where no request comes."""


def fewest_by_window(
    trace: Path,
    resolved: Resolved,
    slo: Slo,
    strict: bool,
    only_fitting: bool,
    windows: Windows,
) -> WindowCounts:
    """A worker's job: the fewest replicas for each window, or the most allowed where fewer do not do.

    Raises:
        TraceError: a bad row under `strict`.
        ConfigError: a setting does not fit the trace.
    """
    source = open_trace(trace, strict=strict)
    shaping = resolved.settings.shaping
    block_tokens = hash_block_tokens(source, shaping)
    kept = Filter(resolved.max_context if only_fitting else None)
    counts = WindowCounts(
        requests=[0] * (windows.end - windows.first), replicas=[0] * (windows.end - windows.first)
    )
    likely = 1
    for number, rows in _by_window(kept.watch(shaped(source, shaping)), windows):

        def meets(replicas: int, rows: list[TraceRequest] = rows) -> bool:
            fleet = replace(resolved, settings=replace(resolved.settings, replicas=replicas))
            return run_judged(rows, fleet, block_tokens, slo, Filter()).meets

        counts.requests[number] = len(rows)
        counts.replicas[number] = likely = _fewest_near(likely, windows.most, meets)
    return counts


def _by_window(
    requests: Iterable[TraceRequest], windows: Windows
) -> Iterator[tuple[int, list[TraceRequest]]]:
    """The windows that have requests, numbered from the first of the stretch; arrivals count from the window's beginning."""
    length = windows.length_ns
    for number, rows in groupby(requests, key=lambda row: row.arrival_ns // length):
        if number >= windows.end:
            return
        if number >= windows.first:
            start = number * length
            yield (
                number - windows.first,
                [replace(r, arrival_ns=r.arrival_ns - start) for r in rows],
            )


def _fewest_near(likely: int, most: int, meets: Callable[[int], bool]) -> int:
    """The fewest from 1 to `most` that meets, looked for step by step from `likely`; `most` where none below does."""
    size = min(likely, most)
    if size == most or meets(size):
        while size > 1 and meets(size - 1):
            size -= 1
        return size
    size += 1
    while size < most and not meets(size):
        size += 1
    return size
