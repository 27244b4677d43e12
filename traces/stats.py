"""What a trace is like: lengths, arrivals, sessions. Streams, keeping a few integers a request. Prints nothing.

Percentiles interpolate linearly. The coefficient of variation is standard deviation over mean of the gaps between arrivals, over the whole trace;
dispersion is variance over mean of the counts in whole 60 s bins (1 for a Poisson process).
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traces.schema import ROOT, TraceRequest

BIN_NS: Final = 60 * 10**9
SHARES: Final = (*(i / 200 for i in range(198)), *(i / 1000 for i in range(990, 1001)))
"""Where whole distributions are read off: every half percent, from 99 % on every tenth."""


class Spread(Struct, frozen=True, kw_only=True):
    """Size and shape of a sample; null but for the count where it is empty."""

    count: int
    mean: float | None = None
    min: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class Arrivals(Struct, frozen=True, kw_only=True):
    """When requests come; null where there are too few to say."""

    span_s: float
    rate_per_s: float | None
    """Requests over the span."""
    cv: float | None
    dispersion_60s: float | None
    busiest_minute: int
    mean_per_minute: float
    longest_gap_s: float | None
    distinct_times: int


class Sessions(Struct, frozen=True, kw_only=True):
    """Closed loops: how long they go on, and how long clients think."""

    sessions: int
    requests_per_session: Spread
    recorded_s: Spread
    """From a session's first request to its last."""
    think_s: Spread
    """Of the requests that wait for another one."""


class TraceStats(Struct, frozen=True, kw_only=True):
    """Figures of one trace."""

    requests: int
    prompt_tokens: Spread
    output_tokens: Spread
    total_prompt_tokens: int
    total_output_tokens: int
    zero_prompts: int
    zero_outputs: int
    arrivals: Arrivals | None
    """None where the trace has no times, or is made of sessions, which have no arrival process among them."""
    sessions: Sessions | None


def spread(sample: NDArray[np.float64] | NDArray[np.int64]) -> Spread:
    """Size and shape of a sample, [n]."""
    if not len(sample):
        return Spread(count=0)
    p50, p90, p99 = np.percentile(sample, [50, 90, 99]).tolist()
    return Spread(
        count=len(sample),
        mean=float(sample.mean()),
        min=float(sample.min()),
        p50=p50,
        p90=p90,
        p99=p99,
        max=float(sample.max()),
    )


def quantiles(sample: NDArray[np.float64] | NDArray[np.int64]) -> list[float]:
    """The value at each of `SHARES`; empty where the sample is."""
    if not len(sample):
        return []
    values: list[float] = np.percentile(sample, [100 * share for share in SHARES]).tolist()
    return values


def arrival_figures(arrival_ns: NDArray[np.int64]) -> Arrivals:
    """Figures of arrivals in order, [n] int64 ns from the first; n at least 1."""
    gaps = np.diff(arrival_ns)
    span_ns = int(arrival_ns[-1] - arrival_ns[0])
    counts = np.bincount((arrival_ns - arrival_ns[0]) // BIN_NS)
    whole = counts[: span_ns // BIN_NS]
    mean_gap = float(gaps.mean()) if len(gaps) else 0.0
    return Arrivals(
        span_s=span_ns / 1e9,
        rate_per_s=len(arrival_ns) * 1e9 / span_ns if span_ns else None,
        cv=float(gaps.std()) / mean_gap if mean_gap else None,
        dispersion_60s=float(whole.var() / whole.mean()) if len(whole) > 1 else None,
        busiest_minute=int(counts.max()),
        mean_per_minute=float(counts.mean()),
        longest_gap_s=float(gaps.max()) / 1e9 if len(gaps) else None,
        distinct_times=1 + int(np.count_nonzero(gaps)),
    )


class StatsCollector:
    """Looks at requests as they pass."""

    def __init__(self) -> None:
        self._arrival_ns = array("q")
        self._num_prompt = array("q")
        self._num_output = array("q")
        self._think_ns = array("q")
        self._session_sizes = array("q")
        self._session_spans = array("q")
        self._session = ROOT
        self._session_start = 0

    def watch(self, requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
        """Yields the same requests."""
        for row in requests:
            self._arrival_ns.append(row.arrival_ns)
            self._num_prompt.append(row.num_prompt)
            self._num_output.append(row.num_output)
            if row.after != ROOT:
                self._think_ns.append(row.think_ns)
            if row.session != ROOT:
                self._count_in_session(row)
            yield row

    def _count_in_session(self, row: TraceRequest) -> None:
        if row.session != self._session:
            self._session = row.session
            self._session_start = row.arrival_ns
            self._session_sizes.append(0)
            self._session_spans.append(0)
        self._session_sizes[-1] += 1
        span = row.arrival_ns - self._session_start
        self._session_spans[-1] = max(self._session_spans[-1], span)

    def figures(self, *, has_arrivals: bool) -> TraceStats:
        """Of the requests that have passed."""
        prompts = np.frombuffer(self._num_prompt, np.int64)
        outputs = np.frombuffer(self._num_output, np.int64)
        is_open_loop = has_arrivals and not self._think_ns and len(prompts) > 0
        sessions = None
        if self._session_sizes:
            sessions = Sessions(
                sessions=len(self._session_sizes),
                requests_per_session=spread(np.frombuffer(self._session_sizes, np.int64)),
                recorded_s=spread(np.frombuffer(self._session_spans, np.int64) / 1e9),
                think_s=spread(np.frombuffer(self._think_ns, np.int64) / 1e9),
            )
        return TraceStats(
            requests=len(prompts),
            prompt_tokens=spread(prompts),
            output_tokens=spread(outputs),
            total_prompt_tokens=int(prompts.sum()),
            total_output_tokens=int(outputs.sum()),
            zero_prompts=int(np.count_nonzero(prompts == 0)),
            zero_outputs=int(np.count_nonzero(outputs == 0)),
            arrivals=(
                arrival_figures(np.frombuffer(self._arrival_ns, np.int64)) if is_open_loop else None
            ),
            sessions=sessions,
        )
