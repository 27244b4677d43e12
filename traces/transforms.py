"""Makes one stream of requests into another: other times, other rates, a shared system prompt. Streams; knows no files.

A session moves as one: whatever is done to its first request happens to all of it, and think times stay.
"""

import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Final

import numpy as np
from msgspec.structs import replace

from engine.core.errors import ConfigError
from traces.schema import MAX_ARRIVAL_NS, ROOT, TraceRequest

_MOST_COPIES: Final = 7


def units(requests: Iterable[TraceRequest]) -> Iterator[list[TraceRequest]]:
    """The requests in groups: a session's are together, any other is alone."""
    for session, rows in groupby(requests, key=lambda row: row.session):
        if session == ROOT:
            for row in rows:
                yield [row]
        else:
            yield list(rows)


def _moved(unit: list[TraceRequest], start_ns: int) -> list[TraceRequest]:
    if start_ns > MAX_ARRIVAL_NS:
        raise ConfigError(
            "arrivals would reach beyond 146 years: choose a smaller time scale, or arrivals that are closer"
        )
    shift = start_ns - unit[0].arrival_ns
    if not shift:
        return unit
    return [replace(row, arrival_ns=row.arrival_ns + shift) for row in unit]


def with_arrivals(requests: Iterable[TraceRequest], gaps: Iterator[int]) -> Iterator[TraceRequest]:
    """The same requests and sessions in the same order, the first at 0, the others a gap after the one before.

    Raises:
        ConfigError: the gaps add up to more than `MAX_ARRIVAL_NS`.
    """
    now = 0
    for number, unit in enumerate(units(requests)):
        if number:
            now += next(gaps)
            if now > MAX_ARRIVAL_NS:
                raise ConfigError("--arrivals: the requests would go on for more than 146 years")
        yield from _moved(unit, now)


def opened(requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """The requests of sessions at their recorded times, waiting for none; in arrival order, holding those of sessions that are under way."""
    waiting: list[tuple[int, int, TraceRequest]] = []
    place = 0
    for unit in units(requests):
        start_ns = unit[0].arrival_ns
        while waiting and waiting[0][0] < start_ns:
            yield heapq.heappop(waiting)[2]
        for row in unit:
            arrival_ns = max(row.arrival_ns, start_ns)
            free = replace(row, arrival_ns=arrival_ns, session=ROOT, turn=0, after=ROOT, think_ns=0)
            heapq.heappush(waiting, (arrival_ns, place, free))
            place += 1
    while waiting:
        yield heapq.heappop(waiting)[2]


def scale_time(requests: Iterable[TraceRequest], factor: float) -> Iterator[TraceRequest]:
    """Arrivals `factor` times as far apart: 2 halves the rate and keeps the burstiness.

    Raises:
        ConfigError: `factor` is not above 0.
    """
    if not 0 < factor < 1e6:
        raise ConfigError(f"the time scale must be above 0 and below a million, not {factor:g}")
    for unit in units(requests):
        yield from _moved(unit, round(unit[0].arrival_ns * factor))


def scale_rate(
    requests: Iterable[TraceRequest], factor: float, *, seed: int, spread_s: float = 10.0
) -> Iterator[TraceRequest]:
    """`factor` times the requests in the same span: below 1 each is kept with that chance, above 1 some are repeated.

    A repetition comes up to `spread_s` later than its original, so that rates over longer times keep their pattern; it shares
    no block and no session with it.

    Raises:
        ConfigError: `factor` is not above 0.
    """
    if not 0 < factor <= 10_000:
        raise ConfigError(f"the rate scale must be above 0 and at most 10000, not {factor:g}")
    rng = np.random.default_rng(seed)
    whole, part = int(factor), factor % 1
    copies = whole + (part > 0)

    def draw() -> int:
        return whole + (copies > whole and rng.random() < part)

    yield from _repeated(requests, draw, copies, rng, spread_s)


def resample(
    requests: Iterable[TraceRequest], *, seed: int, spread_s: float = 10.0
) -> Iterator[TraceRequest]:
    """Another draw of the same workload: each request or session comes as often as a Poisson draw of mean 1 says.

    Copies come later than their original, as in `scale_rate`, and share nothing with it. Draws above 7, one in a hundred thousand, count as 7.
    """
    rng = np.random.default_rng([seed, _MOST_COPIES])  # not the draws of scale_rate
    yield from _repeated(
        requests, lambda: min(_MOST_COPIES, int(rng.poisson(1.0))), _MOST_COPIES, rng, spread_s
    )


def _repeated(
    requests: Iterable[TraceRequest],
    draw: Callable[[], int],
    copies: int,
    rng: np.random.Generator,
    spread_s: float,
) -> Iterator[TraceRequest]:
    """Each request or session as often as drawn, at most `copies` times; all but the first up to `spread_s` later."""
    waiting: list[tuple[int, int, list[TraceRequest]]] = []
    place = 0
    for unit in units(requests):
        start = unit[0].arrival_ns
        while waiting and waiting[0][0] <= start:
            yield from heapq.heappop(waiting)[2]
        for copy in range(draw()):
            delay = round(rng.random() * spread_s * 1e9) if copy else 0
            rows = [_copied(row, copy, copies) for row in _moved(unit, start + delay)]
            heapq.heappush(waiting, (start + delay, place, rows))
            place += 1
    while waiting:
        yield from heapq.heappop(waiting)[2]


def _copied(row: TraceRequest, copy: int, copies: int) -> TraceRequest:
    if copies == 1:
        return row
    hash_ids = row.hash_ids
    if hash_ids:
        hash_ids = array("q", [_in_64_bits(block * copies + copy) for block in hash_ids])
    session = row.session if row.session == ROOT else row.session * copies + copy
    return replace(row, hash_ids=hash_ids, session=session)


def _in_64_bits(number: int) -> int:
    """Ids that are hashes of 64 bits stay such; others are far too small to wrap round."""
    return (number + 2**63) % 2**64 - 2**63


def with_system_prompt(
    requests: Iterable[TraceRequest], num_tokens: int, block_tokens: int
) -> Iterator[TraceRequest]:
    """The same requests, each behind `num_tokens` that are the same for all: their full blocks get ids, nothing else does.

    Raises:
        ConfigError: a request already has block ids, which stand for prefixes without the system prompt.
    """
    shared = array("q", range(num_tokens // block_tokens))
    for row in requests:
        if row.hash_ids:
            raise ConfigError(
                "a system prompt cannot be put before requests whose block ids are known"
            )
        yield replace(row, num_prompt=row.num_prompt + num_tokens, hash_ids=shared)
