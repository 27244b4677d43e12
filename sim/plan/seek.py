"""Lets a search run on simulations. An inquiry."""

from collections.abc import Callable
from typing import Any

from sim.plan.desk import Inquiry, Job, sure
from sim.plan.search import Found, Search
from sim.plan.trial import Outcome


def seek(
    search: Search, job: Callable[[int, bool], Job]
) -> Inquiry[tuple[Found, dict[int, Outcome]]]:
    """What the search finds, and the outcome of each size that was tried; `job(size, whole)` simulates it."""
    outcomes: dict[int, Outcome] = {}
    ask = next(search)
    while True:
        results: list[Any] = yield [job(size, ask.whole) for size in ask.sizes]
        outcomes |= {size: sure(result) for size, result in zip(ask.sizes, results, strict=True)}
        try:
            ask = search.send({size: outcomes[size].meets for size in ask.sizes})
        except StopIteration as end:
            return end.value, outcomes
