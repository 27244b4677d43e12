"""The fleet question for one kind of hardware: whether it can do it at all, the fewest replicas, and beside them what no fleet does with less. An inquiry."""

import math
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from sim.plan.bound import BoundFigures
from sim.plan.desk import Inquiry, Job, sure
from sim.plan.machines import alone_settings, degrees_of, machine_of, reason_alone
from sim.plan.narrower import as_sized, not_enough, too_small, too_weak, with_narrower
from sim.plan.points import Price, cost_of, point_of
from sim.plan.question import Question
from sim.plan.result import Autoscaling, LowerBound, Narrower, PlanTrace, Point, Reason
from sim.plan.search import fewest
from sim.plan.seek import seek
from sim.plan.sized import Sized, new_candidate, with_replicas
from sim.plan.trial import Outcome
from sim.plan.windows import WindowCounts, Windows
from sim.report.figures import Resolved
from traces.judge import Populations

STRETCHES = 8
"""Jobs that the windows of a trace are shared out to."""


def size_fleet(question: Question, hardware: str, price: Price, trace: PlanTrace) -> Inquiry[Sized]:
    """The candidate, without reseeding and sensitivity."""
    reason = Reason(code="no_fit", message="")
    machine: Resolved | None = None
    alone: Outcome | None = None
    failed: Resolved | None = None
    looked_at: list[Narrower] = []
    for degree in degrees_of(question):
        tried = machine_of(question, hardware, degree, replicas=1)
        if isinstance(tried, Reason):
            reason = reason if machine is not None else tried
            looked_at.append(too_small(degree))
            continue
        idle = question.machine(hardware=hardware, tensor_parallel=degree, **alone_settings(trace))
        machine = tried
        [result] = yield [question.trial(idle, _most_alone(question, machine))]
        alone = sure(result)
        assert alone is not None
        if alone.meets:
            sized = yield from _fewest(question, machine, price, alone)
            sized = yield from _spread_wider(question, sized, price, trace, looked_at)
            return Sized(with_narrower(sized.candidate, looked_at), sized.machine, sized.alone)
        looked_at.append(too_weak(degree, alone))
        failed = idle
    if machine is not None and failed is not None:
        [result] = yield [question.trial(failed)]
        alone = sure(result)
        assert alone is not None
        missing = reason_alone(alone, machine, trace, "each request alone")
        assert missing is not None
        reason = missing
    candidate = new_candidate(hardware, machine, price, alone)
    return Sized(replace(candidate, reasons=[reason]), machine, alone)


def _spread_wider(
    question: Question, sized: Sized, price: Price, trace: PlanTrace, looked_at: list[Narrower]
) -> Inquiry[Sized]:
    """The answer, or that of replicas spread over more devices, where that takes fewer of them in all. Every degree is tried that could.

    A replica of twice the devices reads its weights in half the time and has more than twice the pool, so it can be worth more than two. One degree that
    takes no fewer says nothing of the next: round robin can give all long prompts to one of two replicas, and a single one shares them. What each degree
    takes is put to `looked_at`.
    """
    hardware, degree = sized.candidate.hardware, sized.candidate.tensor_parallel
    looked_at.append(as_sized(sized.candidate))
    for wider in degrees_of(question):
        if wider <= degree:
            continue
        machine = machine_of(question, hardware, wider, replicas=1)
        if isinstance(machine, Reason):
            continue
        devices = sized.candidate.devices
        if devices is not None:
            room = (devices - 1) // wider
            if not room:
                break
            [probe] = yield [question.trial(with_replicas(machine, room), question.most)]
            if not sure(probe).meets:
                looked_at.append(not_enough(wider, room))
                continue
        idle = question.machine(hardware=hardware, tensor_parallel=wider, **alone_settings(trace))
        [result] = yield [question.trial(idle)]
        other = yield from _fewest(question, machine, price, sure(result))
        looked_at.append(as_sized(other.candidate))
        if other.candidate.devices is not None and other.candidate.devices < (devices or math.inf):
            sized = other
    return sized


def _most_alone(question: Question, machine: Resolved) -> Populations | None:
    """How many requests come alone, where that is known: then a machine that is too slow need not try them all."""
    shaping = machine.settings.shaping
    changes = shaping.rate_scale != 1 or shaping.resample or shaping.open_loop
    return None if changes else question.most


def _fewest(question: Question, machine: Resolved, price: Price, alone: Outcome) -> Inquiry[Sized]:
    settings = machine.settings
    degree = settings.tensor_parallel
    most = question.max_replicas

    def job(size: int, whole: bool) -> Job:
        return question.trial(with_replicas(machine, size), None if whole else question.most)

    figures: BoundFigures | None = None
    if machine.table is None:
        [result] = yield [question.bound(machine)]
        figures = sure(result)
    bound = _bound_of(figures) if figures is not None else None
    least = (bound.peak_replicas or 1) if bound is not None else 1
    found, outcomes = yield from seek(fewest(most, min(least, most)), job)
    points = [
        point_of(outcomes[size], size, size * degree, price.usd_per_hour)
        for size in sorted(outcomes)
    ]
    candidate = replace(
        new_candidate(settings.hardware, machine, price, alone),
        points=points,
        bound=bound,
        no_bound=None if bound is not None else _why_no_bound(machine),
        monotone=not found.exceptions,
        exceptions=found.exceptions,
    )
    given = question.settings.get("tensor_parallel")
    if found.answer is None:
        return Sized(
            replace(candidate, reasons=[_too_many(points[-1], most, least, given)]), machine, alone
        )
    size = found.answer
    candidate = replace(
        candidate,
        feasible=True,
        replicas=size,
        devices=size * degree,
        cost=cost_of(outcomes[size], size * degree, price.usd_per_hour),
    )
    if bound is not None:
        candidate = replace(candidate, bound=_beside(bound, outcomes[size], size, degree, price))
    if question.with_autoscaling and size > 1 and not alone.sessions:
        scaling = yield from _autoscaling(question, machine, size, outcomes[size].span_s)
        candidate = replace(candidate, autoscaling=scaling)
    return Sized(candidate, machine, alone)


def _why_no_bound(machine: Resolved) -> str:
    what = "this cost model has none"
    if machine.table is not None:
        what = f"the table {machine.table.file} has points and no formula"
    return f"No lower bound is given for what an autoscaler could save: it needs a formula that no step undercuts, and {what}."


def _bound_of(figures: BoundFigures) -> LowerBound:
    return LowerBound(
        replica_hours=figures.device_s / 3600,
        exempt=figures.exempt,
        peak_replicas=figures.peak,
        peak_from_s=figures.peak_from_s,
        peak_to_s=figures.peak_to_s,
        fixed_replica_hours=None,
        most_saving_share=None,
        usd_per_million_output_tokens=None,
    )


def _beside(
    bound: LowerBound, outcome: Outcome, size: int, degree: int, price: Price
) -> LowerBound:
    """The bound beside the answer."""
    fixed = size * outcome.simulated_s / 3600
    usd = price.usd_per_hour
    tokens = outcome.output_tokens
    return replace(
        bound,
        fixed_replica_hours=fixed,
        most_saving_share=1 - bound.replica_hours / fixed,
        usd_per_million_output_tokens=(
            1e6 * bound.replica_hours * degree * usd / tokens
            if usd is not None and tokens
            else None
        ),
    )


def _too_many(last: Point, most: int, least: int, given: int | None) -> Reason:
    """`given`: the one degree that was to be looked at; None: all were."""
    late = [clause.name for clause in last.clauses if clause.misses > clause.allowed]
    missed = f"{' and '.join(late)} not kept" if late else "goodput not reached"
    needed = f" to {least} or more" if least > most else ""
    number = "1 replica is" if most == 1 else f"{most} replicas are"
    wider = f", or leave out --set tensor_parallel={given}" if given is not None else ""
    message = f"{number} not enough ({missed}); raise --max-replicas{needed}{wider}"
    return Reason(code="replicas", message=message)


def _autoscaling(
    question: Question, machine: Resolved, fixed: int, span_s: float
) -> Inquiry[Autoscaling]:
    length_ns = round(question.window_s * 1e9)
    number = math.floor(span_s * 1e9 / length_ns) + 1
    edges = [number * part // STRETCHES for part in range(STRETCHES + 1)]
    jobs = [
        question.windows(machine, Windows(length_ns=length_ns, first=first, end=end, most=fixed))
        for first, end in pairwise(edges)
        if first < end
    ]
    results: list[Any] = yield jobs
    parts: list[WindowCounts] = [sure(result) for result in results]
    replicas = [count for part in parts for count in part.replicas]
    hours = question.window_s / 3600
    needed, taken = sum(replicas) * hours, fixed * number * hours
    return Autoscaling(
        window_s=question.window_s,
        replicas=replicas,
        requests=[count for part in parts for count in part.requests],
        replica_hours=needed,
        fixed_replica_hours=taken,
        saving_share=1 - needed / taken,
    )
