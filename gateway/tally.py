"""What is counted at each token, for Prometheus. A token costs two list entries; they become buckets in bulk, at the latest at a scrape.

Knows seconds and counts; knows nothing of requests.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_MOST_PENDING: Final = 8192


class TokenTally(Collector):
    """Tokens handed to clients, and the time between one and the next."""

    def __init__(self, buckets: Sequence[float]) -> None:
        """`buckets`: upper bounds in seconds, rising."""
        self._bounds = np.array(buckets)
        self._counts = np.zeros(len(buckets) + 1, np.int64)
        self._sum_s = 0.0
        self._num_tokens = 0
        self._gaps_s: list[float] = []
        self._weights: list[int] = []

    def count(self, num_tokens: int, since_s: float | None) -> None:
        """Tokens of one choice were handed over together, `since_s` after those before them, whose time they share."""
        self._num_tokens += num_tokens
        if since_s is not None:
            self._gaps_s.append(since_s)
            self._weights.append(num_tokens)
            if len(self._gaps_s) >= _MOST_PENDING:
                self._fold()

    def collect(self) -> Iterator[Metric]:
        """Both metrics."""
        self._fold()
        tokens = "Tokens that were handed to clients."
        yield CounterMetricFamily("kilburn_generation_tokens", tokens, value=self._num_tokens)
        bounds = [*map(str, self._bounds.tolist()), "+Inf"]
        yield HistogramMetricFamily(
            "kilburn_inter_token_latency_seconds",
            "Between one token and the next.",
            buckets=list(zip(bounds, np.cumsum(self._counts).tolist(), strict=True)),
            sum_value=self._sum_s,
        )

    def _fold(self) -> None:
        weights = np.array(self._weights, np.int64)
        gaps = np.array(self._gaps_s) / weights
        # A value on a bound belongs to it: `le`.
        places = np.searchsorted(self._bounds, gaps, side="left")
        self._counts += np.bincount(places, weights, len(self._counts)).astype(np.int64)
        self._sum_s += math.fsum(self._gaps_s)
        self._gaps_s.clear()
        self._weights.clear()
