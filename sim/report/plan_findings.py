"""Figures and pictures beside a plan's sentences. The sentences are the plan's own; which of its figures each is about shows from how it begins."""

from collections.abc import Callable
from html import escape
from typing import Final

from sim.plan.findings import machines, point_at
from sim.plan.narrower import BEGINNING
from sim.plan.result import Candidate, PlanResult
from traces.report import numbers, svg
from traces.report.document import Finding

Shown = tuple[str, str, str]
"""Figure, picture, and what it was computed from."""


def page_finding(sentence: str, result: PlanResult) -> Finding:
    """The sentence with its figure and picture."""
    show: Callable[[str, PlanResult], Shown] = _answer
    if sentence != result.findings[0]:
        show = next((f for beginnings, f in _KINDS if sentence.startswith(beginnings)), _other)
    figure, picture, source = show(sentence, result)
    warm = result.best is None or "misses" in sentence or "cannot do it" in sentence
    return Finding(figure=figure, sentence=sentence, picture=picture, source=source, warm=warm)


def _best(result: PlanResult) -> Candidate:
    assert result.best is not None
    return result.candidates[result.best]


def _machines(candidate: Candidate) -> str:
    return machines(candidate.replicas or 0, candidate).replace(" x ", " × ")


def _users(candidate: Candidate) -> str:
    count = candidate.users or 0
    return f"{'≥ ' if candidate.at_least else ''}{count:,} user{'' if count == 1 else 's'}"


def _price(candidate: Candidate) -> float | None:
    if candidate.users is not None:
        return candidate.usd_per_user_hour
    return candidate.cost.usd_per_million_output_tokens if candidate.cost else None


def _prices(candidates: list[Candidate], best: Candidate | None) -> str:
    """Costs beside each other, or devices where there are no prices."""
    priced = [(c, _price(c)) for c in candidates if c.feasible]
    known = [(c, price) for c, price in priced if price is not None]
    if known:
        most = max(price for _, price in known) or 1.0
        return svg.compared(
            [
                (
                    f"{escape(c.hardware)} ${price:.2f}",
                    price / most,
                    "used" if c is best else "unused",
                )
                for c, price in known
            ]
        )
    sized = [(c, c.devices) for c, _ in priced if c.devices]
    widest = max((devices for _, devices in sized), default=1)
    return svg.compared(
        [
            (f"{escape(c.hardware)} {devices}", devices / widest, "used" if c is best else "unused")
            for c, devices in sized
        ]
    )


def _answer(sentence: str, result: PlanResult) -> Shown:
    of = "users at work" if result.mode == "users" else "the whole trace, bursts included"
    source = f"Bisection over {numbers.counted(result.simulations, 'simulation')} of {of}."
    if result.best is None:
        return "none", "", source
    best = _best(result)
    figure = _users(best) if best.users is not None else _machines(best)
    return figure, _prices(result.candidates, best), source


def _other(sentence: str, result: PlanResult) -> Shown:
    named = [c for c in result.candidates if c.hardware in sentence]
    candidate = max(named, key=lambda c: len(c.hardware), default=None)  # L4 is in L40S
    if candidate is None:
        return "", "", "See the tables below."
    best = _best(result) if result.best is not None else None
    if not candidate.feasible:
        return "no", "", "Simulated, or computed from memory and weights."
    figure = _users(candidate) if candidate.users is not None else _machines(candidate)
    return (
        figure,
        _prices([c for c in result.candidates if c in (candidate, best)], best),
        "The same search on this machine.",
    )


def _load(sentence: str, result: PlanResult) -> Shown:
    best = _best(result)
    point = point_at(best, best.users or best.replicas)
    shares = [
        (c, c.value_ms / c.limit_ms)
        for c in (point.clauses if point else [])
        if c.value_ms is not None
    ]
    if not shares:
        return "", "", "The simulation of the answer."
    rows = [
        (f"{escape(c.name)}, of what is promised", share, "used" if share <= 1 else "warm")
        for c, share in shares
    ]
    return (
        numbers.percent(max(share for _, share in shares)),
        svg.compared(rows),
        "Largest value over its limit, in the simulation of the answer.",
    )


def _costs(sentence: str, result: PlanResult) -> Shown:
    best = _best(result)
    price = _price(best)
    if price is None:
        return "no price", "", "The table of hardware."
    unit = "a user-hour" if best.users is not None else "/ M out"
    return (
        f"${price:,.2f} {unit}",
        _prices(result.candidates, best),
        f"Price of a device-hour: {best.price_source}; all devices, busy or not, over the simulated time.",
    )


def _memory(sentence: str, result: PlanResult) -> Shown:
    best = _best(result)
    point = point_at(best, best.users or best.replicas)
    seen = point.memory if point is not None else None
    if seen is None:
        return "", "", "The simulation of the answer."
    held = seen.unused + seen.rounding
    return (
        numbers.percent(seen.token_states),
        svg.bars([(seen.token_states, "used"), (held, "warm"), (seen.free, "free")]),
        "Time-weighted, in the simulation of the answer.",
    )


def _tighter(sentence: str, result: PlanResult) -> Shown:
    best = _best(result)
    answer = best.users or best.replicas or 0
    point = point_at(best, answer + 1 if best.users is not None else answer - 1)
    assert point is not None
    where = "with one user more" if best.users is not None else "of the next smaller fleet"
    late = [c for c in point.clauses if c.misses > c.allowed]
    if not late:
        good = point.good_share or 0.0
        return (
            numbers.percent(good),
            svg.bars([(good, "used"), (1 - good, "warm")]),
            f"Requests that keep all limits in the simulation {where}.",
        )
    worst = max(late, key=lambda c: c.misses / max(1, c.population))
    share = worst.misses / max(1, worst.population)
    return (
        numbers.percent(share),
        svg.bars([(share, "warm"), (1 - share, "used")]),
        f"Late requests in the simulation {where}.",
    )


def _scaling(sentence: str, result: PlanResult) -> Shown:
    scaling = _best(result).autoscaling
    assert scaling is not None
    ends = [scaling.window_s * (i + 1) for i in range(len(scaling.replicas))]
    needed = [float(n) for n in scaling.replicas]
    picture = svg.spark(ends, needed, max(needed, default=1.0), "used") if ends else ""
    return (
        numbers.percent(scaling.saving_share),
        picture,
        "The fewest replicas that each window needs by itself.",
    )


def _bound(sentence: str, result: PlanResult) -> Shown:
    bound = _best(result).bound
    assert bound is not None
    assert bound.most_saving_share is not None
    needed = 1 - bound.most_saving_share
    return (
        f"{bound.replica_hours:.2f} h",
        svg.bars([(needed, "used"), (bound.most_saving_share, "unused")]),
        "Computed from the trace, the promises and the cost model; no simulation.",
    )


def _no_bound(sentence: str, result: PlanResult) -> Shown:
    return "no bound", "", "A bound is proved from the cost model, and a table has no formula."


def _narrower(sentence: str, result: PlanResult) -> Shown:
    return "", "", "The same search with smaller replicas."


def _draws(sentence: str, result: PlanResult) -> Shown:
    again = _best(result).reseeding
    if again is None:
        return "1 run", svg.bars([(1.0, "used")]), "One run; redraws were not asked for."
    share = again.holds / max(1, again.seeds)
    return (
        f"{again.holds} of {again.seeds}",
        svg.bars([(share, "used"), (1 - share, "warm")]),
        f"Simulations of other draws of {'sessions' if result.mode == 'users' else 'the same trace'}.",
    )


def _rates(sentence: str, result: PlanResult) -> Shown:
    best = _best(result)
    rates = [v for v in best.sensitivity if v.setting == "rate_scale"]
    kept = [float(v.value) / float(v.base) for v in rates if v.meets_at_answer]
    answers = [(f"{v.value} × rate: {v.answer}", v.answer) for v in rates if v.answer]
    most = max((n for _, n in answers), default=1)
    picture = svg.compared([(text, n / most, "used") for text, n in answers])
    return (
        f"{max(kept, default=1.0):.3g} × rate",
        picture,
        "The largest rate that was tried at which the answer still does.",
    )


def _settings(sentence: str, result: PlanResult) -> Shown:
    others = [v for v in _best(result).sensitivity if v.setting != "rate_scale" and v.was_run]
    moved = sum(v.change != 0 for v in others)
    share = moved / max(1, len(others))
    return (
        f"{moved} of {len(others)}",
        svg.bars([(share, "warm"), (1 - share, "used")]),
        "Simulations with one setting changed at a time.",
    )


_KINDS: Final[tuple[tuple[tuple[str, ...], Callable[[str, PlanResult], Shown]], ...]] = (
    (("There is little headroom", "The same "), _rates),
    (("Promised",), _load),
    (("It costs", "What it costs"), _costs),
    (("Of its memory",), _memory),
    (("One replica fewer", "One user more"), _tighter),
    (("Scaled in windows",), _scaling),
    (("No autoscaler",), _bound),
    (("No lower bound",), _no_bound),
    (("How sure",), _draws),
    (("None of", "What moves"), _settings),
    ((BEGINNING,), _narrower),
)
