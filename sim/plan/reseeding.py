"""Whether an answer holds on other draws of the same trace. An inquiry."""

import math
from typing import Any

from sim.plan.desk import Inquiry, sure
from sim.plan.ladder import Ladder
from sim.plan.question import Question
from sim.plan.result import Reseeding
from sim.plan.sized import Sized
from sim.plan.trial import Outcome
from sim.sweep.workers import Failure

CONFIDENT = 0.95
"""Share of the draws in which an answer must hold to be suggested; and how sure `at_least` is."""


def reseed(question: Question, sized: Sized) -> Inquiry[Reseeding | None]:
    """In how many draws the answer holds, and where it does not, the next safer; None where every draw of a tiny trace is empty."""
    ladder = Ladder(question, sized)
    machine, answer, safer = sized.machine, ladder.answer, ladder.safer
    assert machine is not None
    results: list[Any] = yield [ladder.redraw(machine, answer, i) for i in range(question.seeds)]
    drawn = [(place, sure(r)) for place, r in enumerate(results) if not _is_empty(r)]
    if not drawn:
        return None
    holds = sum(outcome.meets for _, outcome in drawn)
    failed = [number for number, outcome in drawn if not outcome.meets]
    more = holds
    if failed and safer != answer:
        again: list[Any] = yield [ladder.redraw(machine, safer, number) for number in failed]
        more += sum(sure(result).meets for result in again)
    suggested = None
    for size, count in ((answer, holds), (safer, more)):
        if suggested is None and count >= CONFIDENT * len(drawn):
            suggested = size
    return Reseeding(
        seeds=len(drawn),
        holds=holds,
        holds_with_one_more=more,
        safer=safer,
        suggested=suggested,
        sure_share=at_least(holds, len(drawn)),
        worst_ms=_worst([outcome for _, outcome in drawn]),
    )


def at_least(holds: int, draws: int) -> float:
    """The share of all draws that hold, at least, where so many of `draws` did: exact, one-sided, at 95 % (Clopper and Pearson)."""
    if not holds:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(40):
        share = (low + high) / 2
        tail = sum(
            math.comb(draws, n) * share**n * (1 - share) ** (draws - n)
            for n in range(holds, draws + 1)
        )
        low, high = (share, high) if tail < 1 - CONFIDENT else (low, share)
    return round(low, 6)


def _is_empty(result: Any) -> bool:
    return isinstance(result, Failure) and not result.is_ours


def _worst(outcomes: list[Outcome]) -> dict[str, float | None]:
    worst: dict[str, float | None] = {}
    for place, clause in enumerate(outcomes[0].clauses):
        values = [outcome.clauses[place].value_ms for outcome in outcomes]
        largest = max(math.inf if value is None else value for value in values)
        worst[clause.name] = largest if largest < math.inf else None
    return worst
