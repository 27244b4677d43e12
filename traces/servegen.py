"""ServeGen client mixes: production statistics of API clients to a stream of requests. Drawn from a seed.

A client is a renewal process whose rate, burstiness and family change by window, with lengths drawn from the distributions of that part of the day.
Input and output lengths are independent: how they correlate is not recorded. Source: Xiang et al., ServeGen, arXiv 2505.09999.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from msgspec import Meta, Struct

from engine.core.errors import ConfigError, TraceError
from traces.json_rows import decode_lines
from traces.lines import Lines, read_chunks
from traces.schema import BadRow, TraceRequest
from traces.stats import Spread

DRAWS: Final = 256
"""Drawn at once; part of what a seed means."""

Share = Annotated[float, Meta(ge=0)]


class Window(Struct, frozen=True, array_like=True):
    """One client over one stretch of time."""

    start_s: Share
    rate: Share
    """Requests a second; 0: silent."""
    cv: Share
    family: Literal["Gamma", "Weibull"] | None
    shape: Share
    scale: Share
    """As recorded; gaps are rescaled to the rate."""


class Lengths(Struct, frozen=True):
    """Distributions over one part of the day, as (value, probability); empty: the client was silent."""

    input_tokens: list[tuple[float, Share]]
    output_tokens: list[tuple[float, Share]]


class Client(Struct, frozen=True):
    """One client of a service."""

    client: int
    windows: list[Window]
    dists: dict[str, Lengths]
    """By the second at which the part of the day starts."""

    def lengths_at(self, second: float) -> Lengths | None:
        """The distributions of the part of the day that `second` lies in."""
        starts = [int(key) for key in self.dists if int(key) <= second]
        return self.dists[str(max(starts))] if starts else None


def is_clients(head: bytes) -> bool:
    """Whether a file's first line looks like a client of a ServeGen recording."""
    return head.lstrip().startswith(b'{"client"') and b'"windows"' in head


def read_clients(path: Path) -> list[Client]:
    """The clients of a file, one JSON object a line.

    Raises:
        TraceError: the file cannot be read, or a line is no client.
    """
    clients = []
    lines = Lines(read_chunks(path))
    for number, client in decode_lines(lines, Client):
        if isinstance(client, BadRow):
            raise TraceError(client.message, file=str(path), line=number)
        if any(not key.isdigit() for key in client.dists):
            raise TraceError("a key of dists is no second of the day", file=str(path), line=number)
        clients.append(client)
    if lines.damage is not None:
        raise TraceError(lines.damage, file=str(path), line=lines.number + 1)
    if not clients:
        raise TraceError("the file has no clients", file=str(path))
    return clients


def mix(
    clients: Sequence[Client],
    *,
    start_s: float,
    duration_s: float,
    rate: float | None = None,
    seed: int,
) -> Iterator[TraceRequest]:
    """Requests of all clients from `start_s` of the day on, in arrival order, arrivals from there.

    `rate`: scale all clients alike to this many requests a second over the stretch, as expected; None: as recorded.

    Raises:
        ConfigError: nothing is recorded there.
    """
    recorded = expected_requests(clients, start_s, duration_s)
    if not recorded > 0:
        raise ConfigError(
            f"no client is active from second {start_s:g} to {start_s + duration_s:g} of the recording"
        )
    factor = 1.0 if rate is None else rate * duration_s / recorded
    streams = [
        _client_requests(client, start_s, duration_s, factor, np.random.default_rng([seed, i]))
        for i, client in enumerate(clients)
    ]
    arrivals = heapq.merge(*streams)
    for line, (arrival_ns, num_prompt, num_output) in enumerate(arrivals, start=1):
        yield TraceRequest(line, arrival_ns, num_prompt, num_output)


def expected_requests(clients: Iterable[Client], start_s: float, duration_s: float) -> float:
    """Requests that the recorded rates give over a stretch of the day."""
    total = 0.0
    for client in clients:
        for window, end_s in _bounded(client.windows):
            overlap = min(end_s, start_s + duration_s) - max(window.start_s, start_s)
            total += window.rate * max(0.0, overlap)
    return total


def _bounded(windows: Sequence[Window]) -> Iterator[tuple[Window, float]]:
    """Each window with its end: the start of the next, the last as long as the one before."""
    ends = [window.start_s for window in windows[1:]]
    last = windows[-1].start_s - windows[-2].start_s if len(windows) > 1 else 600.0
    if windows:
        ends.append(windows[-1].start_s + last)
    yield from zip(windows, ends, strict=True)


def _client_requests(
    client: Client,
    start_s: float,
    duration_s: float,
    factor: float,
    rng: np.random.Generator,
) -> Iterator[tuple[int, int, int]]:
    """(arrival in ns from `start_s`, prompt, output) of one client, in order."""
    for window, end_s in _bounded(client.windows):
        first, last = max(window.start_s, start_s), min(end_s, start_s + duration_s)
        lengths = client.lengths_at(window.start_s)
        if last <= first or not window.rate or lengths is None or not lengths.input_tokens:
            continue
        mean_gap = 1 / (window.rate * factor)
        inputs, outputs = _Drawn(lengths.input_tokens, rng), _Drawn(lengths.output_tokens, rng)
        # The stretch begins at a random moment of a gap, or bursty clients would all fire at each window's start.
        at = first + next(_gaps(window, mean_gap, rng)) * rng.random()
        for gap in _gaps(window, mean_gap, rng):
            if at >= last:
                break
            yield round((at - start_s) * 1e9), inputs.draw(), outputs.draw()
            at += gap


def _gaps(window: Window, mean_gap: float, rng: np.random.Generator) -> Iterator[float]:
    """Gaps in seconds of the window's family and shape, with this mean."""
    shape = window.shape
    while True:
        if window.family == "Weibull" and shape > 0:
            drawn = rng.weibull(shape, DRAWS) * (mean_gap / math.gamma(1 + 1 / shape))
        elif window.family == "Gamma" and shape > 0:
            drawn = rng.gamma(shape, mean_gap / shape, DRAWS)
        else:
            drawn = rng.exponential(mean_gap, DRAWS)
        yield from drawn.tolist()


class _Drawn:
    """Whole numbers of at least 1 drawn from a list of (value, weight)."""

    def __init__(self, pairs: Sequence[tuple[float, float]], rng: np.random.Generator) -> None:
        self._values = np.array([max(1, round(value)) for value, _ in pairs], np.int64)
        weights = np.array([weight for _, weight in pairs])
        self._edges = np.cumsum(weights / weights.sum())
        self._rng = rng
        self._ready: list[int] = []

    def draw(self) -> int:
        if not self._ready:
            places = np.searchsorted(self._edges, self._rng.random(DRAWS), side="right")
            self._ready = self._values[np.minimum(places, len(self._values) - 1)].tolist()
        return self._ready.pop()


class MixStats(Struct, frozen=True, kw_only=True):
    """What a recording of clients says, each client and window weighted by the requests it stands for."""

    clients: int
    span_s: float
    requests: float
    """Expected."""
    rate_per_s: float
    lowest_window_rate: float
    highest_window_rate: float
    cv: float
    """Of each client's gaps, rate-weighted."""
    silent_windows: int
    windows: int
    largest_client_share: float
    prompt_tokens: Spread
    output_tokens: Spread


def mix_stats(clients: Sequence[Client]) -> MixStats:
    """Figures of a recording; lengths as the rate-weighted mixture of all distributions."""
    prompts: dict[float, float] = {}
    outputs: dict[float, float] = {}
    by_window: dict[float, float] = {}
    by_client = []
    requests = cv_sum = span_s = 0.0
    silent = windows = 0
    for client in clients:
        by_client.append(0.0)
        for window, end_s in _bounded(client.windows):
            expected = window.rate * (end_s - window.start_s)
            windows += 1
            silent += not window.rate
            span_s = max(span_s, end_s)
            requests += expected
            by_client[-1] += expected
            by_window[window.start_s] = by_window.get(window.start_s, 0.0) + window.rate
            cv_sum += window.cv * expected
            lengths = client.lengths_at(window.start_s)
            if lengths is not None and expected:
                for totals, pairs in (
                    (prompts, lengths.input_tokens),
                    (outputs, lengths.output_tokens),
                ):
                    for value, share in pairs:
                        totals[value] = totals.get(value, 0.0) + share * expected
    return MixStats(
        clients=len(clients),
        span_s=span_s,
        requests=requests,
        rate_per_s=requests / span_s if span_s else 0.0,
        lowest_window_rate=min(by_window.values(), default=0.0),
        highest_window_rate=max(by_window.values(), default=0.0),
        cv=cv_sum / requests if requests else 0.0,
        silent_windows=silent,
        windows=windows,
        largest_client_share=max(by_client) / requests if requests else 0.0,
        prompt_tokens=_weighted_spread(prompts),
        output_tokens=_weighted_spread(outputs),
    )


def _weighted_spread(totals: dict[float, float]) -> Spread:
    """Size and shape of a weighted sample; a percentile is the least value that so much of the weight does not exceed."""
    if not totals:
        return Spread(count=0)
    values = np.array(sorted(totals))
    weights = np.array([totals[value] for value in values])
    edges = np.cumsum(weights) / weights.sum()
    p50, p90, p99 = values[np.searchsorted(edges, [0.5, 0.9, 0.99])].tolist()
    return Spread(
        count=round(weights.sum()),
        mean=float((values * weights).sum() / weights.sum()),
        min=float(values[0]),
        p50=p50,
        p90=p90,
        p99=p99,
        max=float(values[-1]),
    )
