"""Outcomes to figures. Latencies are of requests that are done, counted from when they were due."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from traces.client.answer import NEVER
from traces.client.figures import (
    BenchCounts,
    BenchDistributions,
    BenchSeries,
    BenchThroughput,
    CachedPrompts,
    Honesty,
)
from traces.client.outcomes import BIN_NS, Outcomes, State
from traces.stats import SHARES, Spread, quantiles, spread

MOST_BINS: Final = 400
LATE_NS: Final = 10_000_000

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Times(NamedTuple):
    """Float64 milliseconds by request, NaN where there are none."""

    ttft: Floats
    tpot: Floats
    e2e: Floats
    late: Floats


def times_of(outcomes: Outcomes) -> Times:
    """Latencies by request; those of requests that failed half-way are kept, except the end to end time."""
    due, started = outcomes.ints("due_ns"), outcomes.ints("started_ns")
    first, last = outcomes.ints("first_ns"), outcomes.ints("last_ns")
    done = np.frombuffer(outcomes.state, np.int8) == State.DONE
    tokens = np.where(
        outcomes.ints("output") > 0, outcomes.ints("output"), outcomes.ints("asked_output")
    )
    gaps = tokens - 1
    return Times(
        ttft=np.where(first != NEVER, (first - due) / 1e6, np.nan),
        tpot=np.where(done & (gaps > 0), (last - first) / np.maximum(gaps, 1) / 1e6, np.nan),
        e2e=np.where(done, (last - due) / 1e6, np.nan),
        late=(started - due) / 1e6,
    )


class Latencies(NamedTuple):
    """Sizes and shapes, and whole distributions."""

    ttft: Spread
    tpot: Spread
    e2e: Spread
    distributions: BenchDistributions


def latencies(outcomes: Outcomes) -> Latencies:
    """Of the requests that are done."""
    done = np.frombuffer(outcomes.state, np.int8) == State.DONE
    times = times_of(outcomes)
    ttft, tpot, e2e = (t[done & ~np.isnan(t)] for t in (times.ttft, times.tpot, times.e2e))
    return Latencies(
        spread(ttft),
        spread(tpot),
        spread(e2e),
        BenchDistributions(
            share=list(SHARES),
            ttft_ms=quantiles(ttft),
            tpot_ms=quantiles(tpot),
            e2e_ms=quantiles(e2e),
            gap_ms=outcomes.gap_ms(SHARES),
        ),
    )


def counts(
    outcomes: Outcomes, never_sent: int, interrupted: bool, said: dict[str, str]
) -> BenchCounts:
    """Every request is in one of them."""
    return BenchCounts(
        submitted=len(outcomes),
        done=outcomes.count(State.DONE),
        failed=outcomes.failures(),
        unfinished=outcomes.count(State.OPEN),
        never_sent=never_sent,
        interrupted=interrupted,
        said=said,
    )


def throughput(outcomes: Outcomes, end_ns: int, connections: int) -> BenchThroughput:
    """Over the time up to `end_ns`."""
    done = np.frombuffer(outcomes.state, np.int8) == State.DONE
    prompt = int(np.maximum(outcomes.ints("prompt")[done], 0).sum())
    output = int(np.maximum(outcomes.ints("output")[done], 0).sum())
    seconds = max(1, end_ns) / 1e9
    begins, ends = _open_intervals(outcomes, end_ns)
    return BenchThroughput(
        measured_s=end_ns / 1e9,
        prompt_tokens=prompt,
        output_tokens=output,
        requests_per_s=int(done.sum()) / seconds,
        prompt_tokens_per_s=prompt / seconds,
        output_tokens_per_s=output / seconds,
        most_open=_most_open(begins, ends),
        mean_open=float((ends - begins).sum()) / max(1, end_ns),
        connections=connections,
    )


def cached_prompts(outcomes: Outcomes) -> CachedPrompts | None:
    """How much of the prompts the server had already; None where it does not say, or had no token to look for."""
    done = np.frombuffer(outcomes.state, np.int8) == State.DONE
    told = done & (outcomes.ints("cached") != NEVER)
    prompt = int(outcomes.ints("prompt")[told].sum())
    if not prompt:
        return None
    cached = int(outcomes.ints("cached")[told].sum())
    return CachedPrompts(
        requests=int(np.count_nonzero(told)),
        prompt_tokens=prompt,
        cached_tokens=cached,
        share=cached / prompt,
    )


def honesty(outcomes: Outcomes) -> Honesty:
    """How far the run was from what was asked."""
    done = np.frombuffer(outcomes.state, np.int8) == State.DONE
    counted = done & (outcomes.ints("output") != NEVER)
    late = outcomes.ints("started_ns") - outcomes.ints("due_ns")

    def error(name: str) -> float | None:
        asked = int(outcomes.ints(f"asked_{name}")[counted].sum())
        return int(outcomes.ints(name)[counted].sum()) / asked - 1 if asked else None

    return Honesty(
        late_ms=spread(late / 1e6),
        late_over_10ms=int(np.count_nonzero(late > LATE_NS)),
        prompt_error=error("prompt"),
        output_error=error("output"),
        without_usage=int(np.count_nonzero(done & ~counted)),
    )


def over_time(outcomes: Outcomes, end_ns: int) -> BenchSeries:
    """Series in at most `MOST_BINS` bins."""
    width = BIN_NS * max(1, -(-end_ns // (BIN_NS * MOST_BINS)))
    size = -(-end_ns // width)
    if size == 0:
        return BenchSeries(
            end_s=[],
            open_requests=[],
            sent_per_s=[],
            done_per_s=[],
            failed_per_s=[],
            events_per_s=[],
        )
    edges = np.minimum(np.arange(1, size + 1) * width, end_ns)
    lengths = np.diff(edges, prepend=0)
    state = np.frombuffer(outcomes.state, np.int8)
    begins, ends = _open_intervals(outcomes, end_ns)
    upto = _integral(begins, edges) - _integral(ends, edges)

    def per_s(times: Ints) -> list[float]:
        rates: list[float] = (
            np.bincount(np.clip(times // width, 0, size - 1), minlength=size) * 1e9 / lengths
        ).tolist()
        return rates

    events = np.zeros(size)
    for place, number in outcomes.events.items():
        events[min(size - 1, place * BIN_NS // width)] += number
    return BenchSeries(
        end_s=(edges / 1e9).tolist(),
        open_requests=(np.diff(upto, prepend=0) / lengths).tolist(),
        sent_per_s=per_s(outcomes.ints("started_ns")),
        done_per_s=per_s(outcomes.ints("end_ns")[state == State.DONE]),
        failed_per_s=per_s(outcomes.ints("end_ns")[state == State.FAILED]),
        events_per_s=(events * 1e9 / lengths).tolist(),
    )


def _open_intervals(outcomes: Outcomes, end_ns: int) -> tuple[Ints, Ints]:
    ends = outcomes.ints("end_ns")
    return outcomes.ints("started_ns"), np.where(ends == NEVER, end_ns, np.minimum(ends, end_ns))


def _integral(starts: Ints, edges: Ints) -> Floats:
    """Sum over `starts` of the time from each to each edge."""
    order = np.sort(starts)
    before = np.searchsorted(order, edges)
    sums = np.concatenate([[0], np.cumsum(order)])
    total: Floats = (before * edges - sums[before]).astype(np.float64)
    return total


def _most_open(begins: Ints, ends: Ints) -> int:
    if not len(begins):
        return 0
    times = np.concatenate([begins, ends])
    steps = np.concatenate([np.ones(len(begins), np.int64), -np.ones(len(ends), np.int64)])
    order = np.lexsort((steps, times))
    return int(np.cumsum(steps[order]).max())
