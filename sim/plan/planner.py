"""From a question to its whole answer: every kind of hardware at once, then the cheapest one looked at closely. Prints nothing."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from engine.core.errors import ConfigError
from sim.hardware import find_hardware
from sim.models import find_model
from sim.plan.agents import size_users
from sim.plan.assumed import assumptions_of
from sim.plan.desk import Desk
from sim.plan.findings import findings_of
from sim.plan.fleet import size_fleet
from sim.plan.points import price_of
from sim.plan.question import Question
from sim.plan.reseeding import reseed
from sim.plan.result import Candidate, PlanResult, PlanTrace
from sim.plan.sensitivity import changes_for, vary
from sim.plan.sized import Sized
from sim.plan.trial import Filter
from sim.replay import no_requests
from sim.sweep.axes import config_of
from sim.sweep.digest import key_of
from traces.formats import open_trace
from traces.judge import Populations
from traces.schema import ROOT
from traces.shaping import shaped

_NOT_SET = {
    "hardware": "give --hardware",
    "replicas": "their number is the answer",
    "until_s": "shorten the trace with --set limit=N, or for users give --watch-s",
}
"""Settings that a plan decides itself, and what to do instead."""


def describe(question: Question) -> PlanTrace:
    """What the question's settings make of the trace, in one pass.

    Raises:
        TraceError: the trace cannot be read, or has no request.
        ConfigError: a setting is wrong or does not fit the trace.
    """
    settings = config_of(question.settings)
    max_context = settings.max_context or find_model(settings.model).max_context
    source = open_trace(question.trace, strict=question.strict)
    kept = Filter(max_context if question.only_fitting else None)
    requests, with_tpot, longest, first, last = 0, 0, 0, None, 0
    asked = shaped(source, settings.shaping, times_needed=False)
    for row in kept.watch(asked):
        requests += 1
        with_tpot += row.num_output > 1
        longest = max(longest, row.num_prompt)
        if row.after == ROOT:
            first = row.arrival_ns if first is None else min(first, row.arrival_ns)
            last = max(last, row.arrival_ns)
    if not requests and not kept.left_out:
        raise no_requests(source)
    if not kept.sessions:
        shaped(source, settings.shaping)  # which says how to supply arrivals, where there are none
    return PlanTrace(
        name=question.trace.name,
        format=source.format,
        sha256=question.trace_sha256,
        has_arrivals=source.has_arrivals or settings.shaping.arrivals is not None,
        requests=requests,
        with_tpot=with_tpot,
        longest_prompt=longest,
        sessions=len(kept.sessions),
        left_out=kept.left_out,
        bad=source.bad_counts,
        span_s=(last - (first or 0)) / 1e9,
    )


def plan(
    question: Question,
    hardware: Sequence[str],
    prices: Mapping[str, float],
    desk: Desk,
    trace: PlanTrace,
    *,
    users: bool,
) -> PlanResult:
    """The answer.

    Args:
        question: All but the hardware.
        hardware: Names to compare.
        prices: By name, as `hardware` spells it, instead of the table's.
        desk: Runs the simulations.
        trace: The question's, as `describe` has it.
        users: The question is how many users fit a fixed machine.

    Raises:
        TraceError: the trace cannot be used.
        ConfigError: a setting is wrong, or a name unknown.
    """
    question = replace(question, most=Populations(trace.requests, trace.with_tpot))
    settings = config_of(question.settings)
    model = find_model(settings.model)
    for name, flag in _NOT_SET.items():
        if name in question.settings and not (users and name == "replicas"):
            raise ConfigError(f"--set {name} has no part in this question: {flag}")
    if users and not trace.sessions:
        raise ConfigError("--users needs a trace of sessions; this one has none")
    machines = [find_hardware(name, question.files.hardware) for name in hardware]
    names = [machine.name for machine in machines]
    given = {
        machine.name: prices[name]
        for name, machine in zip(hardware, machines, strict=True)
        if name in prices
    }
    if len(set(names)) != len(names):
        raise ConfigError(f"--hardware names {max(names, key=names.count)} twice")
    inquiries = [
        size_users(question, machine.name, price_of(machine, given), trace)
        if users
        else size_fleet(question, machine.name, price_of(machine, given), trace)
        for machine in machines
    ]
    sized = desk.run(inquiries)
    best = best_of([one.candidate for one in sized])
    if best is not None:
        sized[best].candidate = _looked_at_closely(question, sized[best], desk)
    candidates = [one.candidate for one in sized]
    resolved = msgspec.to_builtins(settings)
    for name in ("hardware", "tensor_parallel", *(() if users else ("replicas",))):
        resolved.pop(name)
    result = PlanResult(
        mode="users" if users else "fleet",
        question_sha256=key_of(
            "plan",
            question.trace_sha256,
            question.slo,
            resolved,
            [msgspec.to_builtins(machine) for machine in machines],
            given,
            [question.strict, question.only_fitting, question.max_replicas, question.max_users],
            [question.crowd, question.window_s, question.seeds],
            [question.with_autoscaling, question.with_sensitivity],
        ),
        model=model.name,
        slo=question.slo,
        settings=resolved,
        trace=trace,
        candidates=candidates,
        best=best,
        simulations=desk.num_simulations,
        findings=[],
        assumptions=assumptions_of(question, sized, users=users),
    )
    return replace(result, findings=findings_of(result))


def best_of(candidates: Sequence[Candidate]) -> int | None:
    """The cheapest for the tokens it serves, or the user-hour; among those without a price the one of fewest devices."""

    def rank(candidate: Candidate) -> tuple[bool, float, float]:
        cost = candidate.cost
        users = candidate.users or 1
        price = candidate.usd_per_user_hour
        if price is None and cost is not None:
            price = cost.usd_per_million_output_tokens
        return price is None, price or 0.0, (candidate.devices or 0) / users

    feasible = [place for place, one in enumerate(candidates) if one.feasible]
    return min(feasible, key=lambda place: (*rank(candidates[place]), place), default=None)


def _looked_at_closely(question: Question, sized: Sized, desk: Desk) -> Candidate:
    changes = changes_for(sized) if question.with_sensitivity else []
    redraws = [reseed(question, sized)] if question.seeds else []
    found = desk.run([*redraws, *(vary(question, sized, change) for change in changes)])
    reseeding = found[0] if redraws else None
    return replace(sized.candidate, reseeding=reseeding, sensitivity=list(found[len(redraws) :]))
