"""Whether a run kept its promises, request by request. Knows times and an SLO; knows neither who served the requests nor who measured.

A request that was rejected or failed is infinitely late. One that is open at the end is late once it has waited longer than the limit, and
before that it counts neither way. Percentiles are by nearest rank, so that a promise at p99 is kept exactly when at most 1 % are late.
"""

import math
from typing import Final, NamedTuple, assert_never

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traces.slo import METRICS, Clause, Metric, Slo, allowed_misses

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NEVER: Final = -1
"""Instead of a time."""


class Times(NamedTuple):
    """What is known of each request, [n] each; times in ns on one clock, or `NEVER`."""

    arrival_ns: Ints
    """When latencies begin to count."""
    first_ns: Ints
    """First token."""
    end_ns: Ints
    """Last token."""
    num_output: Ints
    """Tokens; with one there is no TPOT."""
    is_open: Bools
    """Not over yet."""
    is_lost: Bools
    """Rejected, failed or never sent."""


class Populations(NamedTuple):
    """How many requests a run will have at most, and how many of them will have a TPOT."""

    requests: int
    with_tpot: int

    def of(self, metric: Metric) -> int:
        """Whom a promise about the metric covers."""
        return self.with_tpot if metric == "tpot" else self.requests


class ClauseFigure(Struct, frozen=True, kw_only=True):
    """How one promise was kept. Percentiles are by nearest rank over all requests; one that never got an answer counts as infinitely late."""

    name: str
    limit_ms: float
    value_ms: float | None
    """Null: the percentile falls on a request without an answer, or the run was stopped once it could not be kept."""
    population: int
    """Requests that the promise covers: for TPOT those of two tokens or more."""
    misses: int
    allowed: int


class Goodput(Struct, frozen=True, kw_only=True):
    """How promises were kept, each request judged against all limits at once."""

    slo: Slo
    meets: bool
    """Every promise is kept, the share among them."""
    judged: int
    """Requests of which it is known: those still open and not late yet count neither way."""
    good: int
    """Of those, the ones that kept every limit at once."""
    good_share: float | None
    good_per_s: float
    """Over the simulated time."""
    within: dict[Metric, int]
    """By metric, those of the judged that kept its limit, whatever their other times are: `good` is at most the least of them."""
    clauses: list[ClauseFigure]


class Judgement(NamedTuple):
    """Of a run that is over."""

    clauses: list[ClauseFigure]
    meets: bool
    judged: int
    good: int
    undecided: int

    @property
    def good_share(self) -> float | None:
        """Of those judged, the ones that kept every limit at once; None where none was judged."""
        return self.good / self.judged if self.judged else None


class Judge:
    """Looks at a run at one moment."""

    def __init__(self, times: Times, now_ns: int, from_ns: int = 0) -> None:
        """Requests that arrived before `from_ns` are not covered by any promise."""
        self._arrival, self._first, self._end = times.arrival_ns, times.first_ns, times.end_ns
        self._gaps: Ints = np.maximum(times.num_output - 1, 0)
        self._open, self._lost = times.is_open, times.is_lost
        self._counts: Bools = self._arrival >= from_ns
        self._now = now_ns

    def measure(self, metric: Metric) -> tuple[Floats, Bools, Bools]:
        """Nanoseconds by request, [n]; whom the metric covers; and where the value is final and not only a lower bound."""
        has_first = self._first != NEVER
        values: Floats | Ints
        if metric == "tpot":
            covered = self._counts & (self._gaps > 0)
            last = np.where(self._open, self._now, self._end)
            values = np.where(has_first, (last - self._first) / np.maximum(self._gaps, 1), 0.0)
            final = ~self._open
        else:
            covered = self._counts
            if metric == "ttft":
                values = np.where(has_first, self._first, self._now) - self._arrival
                final = has_first
            elif metric == "e2e":
                values = np.where(self._open, self._now, self._end) - self._arrival
                final = ~self._open
            else:
                assert_never(metric)
        return np.where(self._lost, math.inf, values), covered, final | self._lost

    def misses(self, clause: Clause) -> int:
        """Requests that are late for certain."""
        values, covered, _ = self.measure(clause.metric)
        return int(np.count_nonzero(covered & (values > clause.limit_ns)))

    def figure(self, clause: Clause) -> ClauseFigure:
        """How the promise stands among those whose outcome is known."""
        values, covered, final = self.measure(clause.metric)
        late = covered & (values > clause.limit_ns)
        known = covered & (final | late)
        population = int(np.count_nonzero(known))
        allowed = allowed_misses(population, clause.percentile)
        value: float | None = None
        if population:
            ranked = np.sort(np.where(final, values, math.inf)[known])
            at = float(ranked[population - allowed - 1])
            value = at / 1e6 if at < math.inf else None
        return ClauseFigure(
            name=clause.name,
            limit_ms=clause.limit_ms,
            value_ms=value,
            population=population,
            misses=int(np.count_nonzero(late)),
            allowed=allowed,
        )

    def good(self, slo: Slo) -> tuple[Bools, Bools]:
        """Which requests keep every limit, and of which it is known whether they do; [n] each.

        What no limit covers, an answer of one token where only TPOT has a limit, is known once it is there.
        """
        is_good = ~self._lost
        is_bad = self._lost.copy()
        for metric in METRICS:
            limit = slo.limit_ns(metric)
            if limit is not None:
                values, covered, final = self.measure(metric)
                is_bad |= covered & (values > limit)
                is_good &= np.where(covered, final & (values <= limit), ~self._open)
        return is_good & self._counts, (is_good | is_bad) & self._counts

    def judge(self, slo: Slo) -> Judgement:
        """How all promises stand."""
        clauses = [self.figure(clause) for clause in slo.clauses]
        good, known = self.good(slo)
        judged = int(np.count_nonzero(known))
        num_good = int(np.count_nonzero(good))
        meets = all(clause.misses <= clause.allowed for clause in clauses)
        if slo.goodput is not None and judged:
            meets = meets and num_good / judged >= slo.goodput
        undecided = int(np.count_nonzero(self._counts & ~known))
        return Judgement(clauses, meets, judged, num_good, undecided)

    def goodput(self, slo: Slo, seconds: float) -> Goodput:
        """The same, in requests a second over so long."""
        judgement = self.judge(slo)
        known = self.good(slo)[1]
        within: dict[Metric, int] = {}
        for metric in slo.metrics:
            only = Slo(clauses=tuple(c for c in slo.clauses if c.metric == metric))
            within[metric] = int(np.count_nonzero(known & self.good(only)[0]))
        return Goodput(
            slo=slo,
            meets=judgement.meets,
            judged=judgement.judged,
            good=judgement.good,
            good_share=judgement.good_share,
            good_per_s=judgement.good / seconds if seconds else 0.0,
            within=within,
            clauses=judgement.clauses,
        )

    def is_hopeless(self, slo: Slo, most: Populations) -> bool:
        """Whether the promises cannot be kept any more, whatever becomes of the requests that are open or still to come."""
        for clause in slo.clauses:
            if self.misses(clause) > allowed_misses(most.of(clause.metric), clause.percentile):
                return True
        if slo.goodput is None:
            return False
        good, known = self.good(slo)
        bad = int(np.count_nonzero(known & ~good))
        return bad > 0 and (most.requests - bad) / most.requests < slo.goodput
