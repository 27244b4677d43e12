"""The stretch of time whose work takes the most replicas, for requests that come when they come. Knows promises and work; knows no machine.

Work lies between two moments for certain where its request comes after the first, and a promise that it keeps ends before the second. All the requests that may
break a promise may do so in the same stretch, so each stretch is measured without its costliest.
"""

import math
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from sim.arrays import Bools, Floats, Ints
from sim.plan.demand import Demand
from sim.plan.exempt import Allowance, largest
from sim.plan.work import Work
from traces.slo import Clause, Slo

LENGTH_STEP: Final = 1.5
"""Between the lengths that are looked at."""
STARTS: Final = 8
"""Stretches of one length overlap: so many begin within one."""
SHORTEST_NS: Final = 10**6


class Crest(NamedTuple):
    """A stretch, and the replicas that its work keeps busy all the time."""

    replicas: float
    start_ns: int
    end_ns: int


class _Promise(NamedTuple):
    """When some work is over at the latest, by request, and how many may be later."""

    ends_ns: Floats
    late: int
    tpot: Clause | None = None
    """The time a token that it rests on, if any."""


def crest_of(
    demand: Demand, work: Work, clause: Clause | None, slo: Slo, allowance: Allowance
) -> Crest | None:
    """The worst stretch of those that are looked at: all lengths in steps, at arrivals; None where no promise bounds when work is done.

    Args:
        demand: Requests in order of arrival.
        work: Of each.
        clause: What `work.in_time` rests on.
        slo: The promises.
        allowance: How many may break each.
    """
    arrival = demand.arrival_ns
    if not len(arrival):
        return None
    best = Crest(0.0, 0, 0)
    for first, last in product(
        _first_tokens(arrival, slo, allowance), _last_tokens(demand, slo, allowance)
    ):
        if first is None and last is None:
            continue
        after = work.decode
        if last is not None and last.tpot is not None and last.tpot == clause:
            after = after + work.in_time
        prompt_by = first or last
        assert prompt_by is not None
        best = _search(best, arrival, prompt_by, work.prompt, last, after)
    return best if best.replicas else None


def _first_tokens(arrival: Ints, slo: Slo, allowance: Allowance) -> list[_Promise | None]:
    found: list[_Promise | None] = [
        _Promise(_after(arrival, clause.limit_ns), allowance.by_clause[clause.name])
        for clause in slo.clauses
        if clause.metric == "ttft"
    ]
    return [*found, None]


def _last_tokens(demand: Demand, slo: Slo, allowance: Allowance) -> list[_Promise | None]:
    arrival = demand.arrival_ns
    gaps = np.maximum(demand.output - 1, 0)
    late = allowance.by_clause
    found: list[_Promise | None] = [None]
    for one in slo.clauses:
        if one.metric == "e2e":
            found.append(_Promise(_after(arrival, one.limit_ns), late[one.name]))
        for other in slo.clauses:
            if (one.metric, other.metric) == ("ttft", "tpot"):
                ends = _after(arrival, one.limit_ns + other.limit_ns * gaps)
                found.append(_Promise(ends, late[one.name] + late[other.name], other))
    return found


def _after(arrival: Ints, waited_ns: Ints | int) -> Floats:
    ends: Floats = (arrival + waited_ns).astype(np.float64)
    return ends


def _search(
    best: Crest,
    arrival: Ints,
    first: _Promise,
    prompt: Floats,
    last: _Promise | None,
    decode: Floats,
) -> Crest:
    """The worst stretch, long ones first; of those that cannot take a whole replica more than `best` none is looked at."""
    ends = first.ends_ns if last is None else np.maximum(first.ends_ns, last.ends_ns)
    length = float(ends.max()) - float(arrival[0])
    shortest = max(float(SHORTEST_NS), float((first.ends_ns - arrival).min()))
    total = np.concatenate([[0.0], np.cumsum(prompt + decode)])
    while True:
        steps = np.arange(arrival[0], arrival[-1] + 1, max(1.0, length / STARTS))
        begin = np.unique(arrival.searchsorted(steps))
        starts = arrival[begin]
        stop = arrival.searchsorted(starts + length, side="right")
        most = (total[stop] - total[begin]) / length
        for at in np.argsort(-most, kind="stable").tolist():
            if most[at] <= math.ceil(best.replicas):
                break
            start = float(starts[at])
            part = slice(int(begin[at]), int(stop[at]))
            inside: Bools = first.ends_ns[part] <= start + length
            busy = _without_late(prompt[part][inside], first.late)
            if last is not None:
                inside = last.ends_ns[part] <= start + length
                busy += _without_late(decode[part][inside], last.late)
            best = max(best, Crest(busy / length, int(start), round(start + length)))
        if length <= shortest:
            return best
        length = max(shortest, length / LENGTH_STEP)


def _without_late(work: Floats, late: int) -> float:
    return max(0.0, float(work.sum()) - largest(work, late))
