"""A plan in plain sentences, the answer first. Knows the result and computes nothing new."""

from sim.plan.advice import advice
from sim.plan.narrower import narrower_text
from sim.plan.result import Candidate, Cost, PlanResult, Point, Variant
from sim.plan.words import SETTINGS, join, promises
from sim.report.memory_table import memory_line
from sim.sweep.render import show_ms
from traces.judge import ClauseFigure
from traces.report import numbers
from traces.slo import Slo


def replica_name(candidate: Candidate) -> str:
    """What one replica runs on: `H100`, or with tensor parallelism `2 x H100`."""
    degree = candidate.tensor_parallel
    return f"{degree} x {candidate.hardware}" if degree > 1 else candidate.hardware


def machines(count: int, candidate: Candidate) -> str:
    """`3 x H100`, or with tensor parallelism `3 x (2 x H100)`."""
    name = replica_name(candidate)
    return f"{count} x ({name})" if candidate.tensor_parallel > 1 else f"{count} x {name}"


def findings_of(result: PlanResult) -> list[str]:
    """Sentences, each with its figures."""
    found = [_answer(result)]
    best = result.candidates[result.best] if result.best is not None else None
    if best is not None:
        found += [_costs(best), _sure(best, result), _load(best, result.slo)]
    for place, candidate in enumerate(result.candidates):
        if place != result.best:
            found.append(_other(candidate))
    if best is None:
        return [*found, *filter(None, [advice(result)])]
    found += [
        *narrower_text(best),
        *_frontier(best, result.slo),
        *_bound(best),
        *scaling_text(best),
    ]
    found += [*_sensitivity(best), *_memory(best)]
    for candidate in result.candidates:
        found += _not_monotone(candidate)
    return found


def _answer(result: PlanResult) -> str:
    if result.best is None:
        what = "machine" if result.mode == "users" else "number of machines"
        return f"No {what} that was looked at keeps {result.slo} for {result.model} on {result.trace.name}."
    best = result.candidates[result.best]
    if result.mode == "users":
        stopped = (
            f"; the search stopped at {best.users:,}, and more may fit (--max-users)"
            if best.at_least
            else ""
        )
        least = f"At least {_users(best.users)}" if best.at_least else _users(best.users)
        return (
            f"{least} can work at once on {machines(best.replicas or 1, best)} with {result.model} and sessions like those of "
            f"{result.trace.name}{stopped}."
        )
    devices = (
        f", {numbers.counted(best.devices or 0, 'device')} in all,"
        if best.devices != best.replicas
        else ""
    )
    return f"You need {machines(best.replicas or 0, best)}{devices} to serve {result.model} under the load of {result.trace.name}."


def _costs(best: Candidate) -> str:
    """What the answer costs."""
    cost = best.cost
    if cost is None:
        return f"What it costs is not known: {best.hardware} has no price; give one with --price {best.hardware}=2.5."
    parts = [f"${cost.usd_per_hour:.2f} an hour"]
    if best.usd_per_user_hour is not None:
        parts.append(f"${best.usd_per_user_hour:.3f} a user-hour")
    if cost.usd_per_million_output_tokens is not None:
        parts.append(f"${cost.usd_per_million_output_tokens:.2f} per million output tokens")
    prompts = ""
    if cost.usd_per_million_tokens is not None:
        prompts = f" (${cost.usd_per_million_tokens:.3f} per million tokens, prompts included)"
    since = f"prices as of {best.price_as_of}" if best.price_as_of else f"{best.price_source}"
    return f"It costs {join(parts)}{prompts}; {since}."


def _users(count: int | None) -> str:
    return "1 user" if count == 1 else f"{count or 0:,} users"


def _price(cost: Cost | None) -> str:
    if cost is None:
        return ""
    tokens = ""
    if cost.usd_per_million_output_tokens is not None and cost.usd_per_million_tokens is not None:
        tokens = (
            f", ${cost.usd_per_million_output_tokens:.2f} a million output tokens "
            f"(${cost.usd_per_million_tokens:.3f} counting prompts)"
        )
    return f", for ${cost.usd_per_hour:.2f} an hour{tokens}"


def _other(candidate: Candidate) -> str:
    name = candidate.hardware
    if not candidate.feasible:
        reason = candidate.reasons[0].message if candidate.reasons else "no reason is known"
        return f"{name} cannot do it: {reason}."
    if candidate.users is not None:
        price = (
            f", ${candidate.usd_per_user_hour:.3f} a user-hour"
            if candidate.usd_per_user_hour
            else ""
        )
        least = "at least " if candidate.at_least else ""
        return f"On {machines(candidate.replicas or 1, candidate)} it is {least}{_users(candidate.users)}{price}."
    return (
        f"{machines(candidate.replicas or 0, candidate)} would do it too{_price(candidate.cost)}."
    )


def point_at(candidate: Candidate, size: int | None) -> Point | None:
    """The point of that many replicas, or users."""
    if candidate.users is not None:
        return next((point for point in candidate.points if point.users == size), None)
    return next((point for point in candidate.points if point.replicas == size), None)


def _load(best: Candidate, slo: Slo) -> str:
    """What is promised, and how the answer keeps it."""
    point = point_at(best, best.users or best.replicas)
    assert point is not None
    kept = join([_value(clause) for clause in point.clauses])
    rejected = sum(point.rejected.values())
    refused = f"; requests that are rejected count as late: {rejected:,}" if rejected else ""
    good = ""
    if slo.goodput is not None and point.good_share is not None:
        good = f", and {numbers.percent(point.good_share)} keep all limits"
    return f"Promised: {promises(slo)}; there {kept}{good}{refused}."


def _value(clause: ClauseFigure) -> str:
    if not clause.population:
        return f"{clause.name} covers no request"
    return f"{clause.name} is {show_ms(clause.value_ms)}"


def _frontier(best: Candidate, slo: Slo) -> list[str]:
    answer = best.users or best.replicas or 0
    is_fleet = best.users is None
    tighter = point_at(best, answer - 1 if is_fleet else answer + 1)
    if tighter is None or tighter.meets:
        return []
    late = [clause for clause in tighter.clauses if clause.misses > clause.allowed]
    what = "One replica fewer" if is_fleet else "One user more"
    if not late:
        if slo.goodput is None or tighter.good_share is None:
            return []
        good, asked = numbers.percent(tighter.good_share), numbers.percent(slo.goodput)
        return [
            f"{what} misses goodput: {good} of requests keep all limits at once, and {asked} are to."
        ]
    worst = max(late, key=lambda clause: clause.misses / max(1, clause.population))
    value = f" ({show_ms(worst.value_ms)})" if worst.value_ms is not None else ""
    return [
        f"{what} misses {worst.name}{value}: of {worst.population:,} requests {worst.misses:,} are late, and {worst.allowed:,} may be."
    ]


def _bound(best: Candidate) -> list[str]:
    bound = best.bound
    if bound is None or bound.most_saving_share is None:
        return [best.no_bound] if best.no_bound is not None else []
    price = bound.usd_per_million_output_tokens
    cheaper = f" or under ${price:.2f} a million output tokens" if price is not None else ""
    peak = bound.peak_replicas
    at_once = ""
    if peak is not None:
        at_once = f", and {peak:,} {'replica is' if peak == 1 else 'replicas are'} needed at once"
    return [
        f"No autoscaler does it in under {_hours(bound.replica_hours)} replica-hours{cheaper}, where the answer takes {_hours(bound.fixed_replica_hours)}: "
        f"at most {bound.most_saving_share:.0%} can be saved{at_once}."
    ]


def _hours(value: float | None) -> str:
    """Two decimals, or where those would say nothing two digits."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value >= 0.1 or not value else f"{value:.2g}"


def scaling_text(best: Candidate) -> list[str]:
    """What windows by themselves would take; nothing where one window holds the whole trace, since that is the fleet itself."""
    scaling = best.autoscaling
    if scaling is None or len(scaling.replicas) < 2:
        return []
    busy = [count for count in scaling.replicas if count]
    return [
        f"Scaled in windows of {scaling.window_s:g} s that each keep the promises by themselves, it would take {_hours(scaling.replica_hours)} "
        f"replica-hours instead of {_hours(scaling.fixed_replica_hours)} ({scaling.saving_share:.0%} less), between {min(busy, default=0)} and "
        f"{max(busy, default=0)} replicas: no bound, and no real policy either."
    ]


def _sure(best: Candidate, result: PlanResult) -> str:
    """How far the answer is to be trusted."""
    kind = str(result.settings.get("cost", "roofline")).partition(":")[0]
    steps = {
        "table": "Step times are those of the table, whatever the hardware",
        "fitted": "Step times are fitted to those of the recording, whatever the hardware",
    }.get(kind, "Step times are modelled, not measured")
    return f"How sure: {_redraws(best)}. {steps}."


def _judged(best: Candidate) -> int:
    """Requests of the answer's run that promises cover."""
    point = point_at(best, best.users or best.replicas)
    return max((clause.population for clause in point.clauses), default=0) if point else 0


def _redraws(best: Candidate) -> str:
    again = best.reseeding
    is_users = best.users is not None
    if again is None and is_users:
        return f"one draw of sessions was simulated, {numbers.counted(_judged(best), 'request')} of it judged (--seeds N draws others, a longer --watch-s judges more)"
    if again is None:
        return "this trace alone was simulated, once (--seeds N redraws it)"
    held = f"the answer holds in {again.holds} of {numbers.counted(again.seeds, 'redraw')} of the trace"
    if is_users:
        held = f"in the run {_judged(best):,} requests were judged; the answer holds in {again.holds} of {numbers.counted(again.seeds, 'draw')} of other sessions"
    if again.holds == again.seeds:
        sure = f"so few show with 95 % confidence that it does in {again.sure_share:.0%} of all"
        return f"{held}; {sure}, or more"
    is_fleet = best.users is None
    answer = best.users or best.replicas
    safer = "one replica more" if is_fleet else _users(again.safer)
    more = (
        f"{held}; with {safer}, in {again.holds_with_one_more}" if again.safer != answer else held
    )
    if again.suggested == answer:
        return more
    if again.suggested is not None:
        sizes = f"{again.suggested} replicas" if is_fleet else _users(again.suggested)
        return f"{more}: plan for {sizes}"
    return f"{more}: the promises have no margin here; loosen them or leave more room"


def _memory(best: Candidate) -> list[str]:
    point = point_at(best, best.users or best.replicas)
    if point is None or point.memory is None:
        return []
    return [f"Of its memory for KV, over the whole run: {memory_line(point.memory)}."]


def _sensitivity(best: Candidate) -> list[str]:
    rates = [v for v in best.sensitivity if v.setting == "rate_scale"]
    others = [v for v in best.sensitivity if v.setting != "rate_scale"]
    return [*_headroom(best, rates), *_settings(best, others)]


def _headroom(best: Candidate, rates: list[Variant]) -> list[str]:
    """How much more traffic the answer takes, of the rates that were tried, lowest first."""
    if not rates:
        return []
    still = "replica still does" if best.replicas == 1 else f"{best.replicas} replicas still do"
    kept = [v for v in rates if v.meets_at_answer]
    failed = next((v for v in rates if not v.meets_at_answer), None)

    def times(variant: Variant) -> str:
        return f"{float(variant.value) / float(variant.base):.3g} times"

    if failed is None:
        return [f"The same {still} at {times(rates[-1])} the rate."]
    then = f"{failed.answer} are needed" if failed.answer is not None else failed.reason
    if not kept:
        return [f"There is little headroom: at {times(failed)} the rate {then}."]
    return [f"The same {still} at {times(kept[-1])} the rate; at {times(failed)} {then}."]


def _settings(best: Candidate, variants: list[Variant]) -> list[str]:
    if not variants:
        return []
    unit = "replica" if best.users is None else "user"

    def said(variant: Variant) -> str:
        place = f"{variant.setting}={variant.value}"
        if variant.setting in SETTINGS:
            place += f", {SETTINGS[variant.setting]},"
        if variant.change is None:
            return f"{place} ({variant.reason})"
        count = abs(variant.change)
        return f"{place} ({count} {'more' if variant.change > 0 else 'fewer'})"

    run = [v for v in variants if v.was_run]
    moved = [v for v in run if v.change != 0]
    found = f"None of {len(run)} changed settings moves the answer by a {unit}."
    if moved:
        found = f"What moves the answer, in {unit}s: {', '.join(said(v) for v in moved)}; {len(run) - len(moved)} other changes do not."
    refused = [said(v) for v in variants if not v.was_run]
    return [f"{found} Could not be tried: {', '.join(refused)}." if refused else found]


def _not_monotone(candidate: Candidate) -> list[str]:
    if not candidate.exceptions:
        return []
    sizes = ", ".join(f"{size:,}" for size in candidate.exceptions)
    if candidate.users is not None:
        verb = "fails" if candidate.exceptions == [1] else "fail"
        users = "user" if candidate.exceptions == [1] else "users"
        return [
            f"{candidate.hardware} is not monotone: {sizes} {users} {verb} though more do not{_below(candidate.users)}."
        ]
    return [
        f"{candidate.hardware} is not monotone: {sizes} replicas fail though fewer do not; the answer has two safe sizes above it."
    ]


def _below(users: int | None) -> str:
    """What was tried on the safe side of a number of users."""
    if users is None:
        return ""
    if users == 1:
        return "; the answer is the most below them"
    sizes = [f"{size:,}" for size in range(max(1, users - 2), users + 1)]
    return (
        f"; {join(sizes)} {'both' if len(sizes) == 2 else 'all'} hold, so the answer is {users:,}"
    )
