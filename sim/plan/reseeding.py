"""Whether an answer holds on other draws of the same trace. An inquiry."""

import math
from typing import Any

from sim.plan.desk import Inquiry, sure
from sim.plan.ladder import Ladder
from sim.plan.question import Question
from sim.plan.result import Reseeding
from sim.plan.sized import Sized
from sim.plan.trial import Outcome

CONFIDENT = 0.95
"""Share of the draws in which an answer must hold to be suggested."""


def reseed(question: Question, sized: Sized) -> Inquiry[Reseeding]:
    """In how many draws the answer holds, and where it does not, the next safer."""
    ladder = Ladder(question, sized)
    machine, answer, safer = sized.machine, ladder.answer, ladder.safer
    assert machine is not None
    results: list[Any] = yield [ladder.redraw(machine, answer, i) for i in range(question.seeds)]
    outcomes: list[Outcome] = [sure(result) for result in results]
    holds = sum(outcome.meets for outcome in outcomes)
    failed = [number for number, outcome in enumerate(outcomes) if not outcome.meets]
    more = holds
    if failed and safer != answer:
        again: list[Any] = yield [ladder.redraw(machine, safer, number) for number in failed]
        more += sum(sure(result).meets for result in again)
    suggested = None
    for size, count in ((answer, holds), (safer, more)):
        if suggested is None and count >= CONFIDENT * question.seeds:
            suggested = size
    return Reseeding(
        seeds=question.seeds,
        holds=holds,
        holds_with_one_more=more,
        suggested=suggested,
        worst_ms=_worst(outcomes),
    )


def _worst(outcomes: list[Outcome]) -> dict[str, float | None]:
    worst: dict[str, float | None] = {}
    for place, clause in enumerate(outcomes[0].clauses):
        values = [outcome.clauses[place].value_ms for outcome in outcomes]
        largest = max(math.inf if value is None else value for value in values)
        worst[clause.name] = largest if largest < math.inf else None
    return worst
