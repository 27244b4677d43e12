"""Which requests need no service at all, since so many may break the promises: the costliest, so that what is left is a bound. Knows no fleet."""

import math
from typing import NamedTuple

import numpy as np

from sim.arrays import Bools, Floats
from traces.slo import Clause, Slo, allowed_misses


class Allowance(NamedTuple):
    """How many requests may break promises, less those that do because they can never run."""

    requests: float
    """Of all; infinite where no promise covers all."""
    with_tpot: float
    """Of those of two tokens or more, beside that; infinite without such a promise."""
    by_clause: dict[str, int]


def allowance_of(slo: Slo, several: Bools, never: Bools) -> Allowance:
    """Of requests, [n]: which have two tokens or more, and which can never run."""
    lost, lost_several = int(never.sum()), int((never & several).sum())
    requests = with_tpot = math.inf
    by_clause = {}
    for clause in slo.clauses:
        of_tpot = clause.metric == "tpot"
        population = int(several.sum()) if of_tpot else len(several)
        lacking = lost_several if of_tpot else lost
        left = max(0, allowed_misses(population, clause.percentile) - lacking)
        by_clause[clause.name] = left
        if of_tpot:
            with_tpot = min(with_tpot, left)
        else:
            requests = min(requests, left)
    if slo.goodput is not None:
        requests = min(requests, max(0, _allowed_bad(len(several), slo.goodput) - lost))
    return Allowance(requests, with_tpot, by_clause)


def _allowed_bad(population: int, share: float) -> int:
    bad = min(population, math.floor(population * (1 - share)) + 1)
    while bad and (population - bad) / population < share:
        bad -= 1
    return bad


def tpot_choices(slo: Slo) -> list[Clause | None]:
    """The promise whose time a token is used: each gives a bound of its own, and so does none."""
    return [None, *(clause for clause in slo.clauses if clause.metric == "tpot")]


def kept_work(
    whole: Floats, in_time: Floats, several: Bools, allowance: Allowance, clause: Clause | None
) -> float:
    """Nanoseconds that remain when the costliest requests are refused, and the costliest others are slow.

    Args:
        whole: Of each request, at any speed, [n].
        in_time: What it takes more where it keeps `clause`, [n].
        several: It has two tokens or more, [n].
        allowance: How many may break promises.
        clause: The promise of a time a token that `in_time` rests on.
    """
    total = whole + in_time if clause is not None else whole
    refused = min(
        largest(total[several], min(allowance.requests, allowance.with_tpot))
        + largest(total[~several], allowance.requests),
        largest(total, allowance.requests),
    )
    slow = largest(in_time, allowance.by_clause[clause.name]) if clause is not None else 0.0
    return max(0.0, float(total.sum()) - refused - slow)


def largest(values: Floats, count: float) -> float:
    """The sum of the `count` largest."""
    if count >= len(values):
        return float(values.sum())
    number = int(count)
    if not number:
        return 0.0
    return float(np.partition(values, len(values) - number)[-number:].sum())
