"""The users' question for one kind of hardware: how many sessions at once a fixed machine can serve. An inquiry."""

from msgspec.structs import replace

from sim.plan.desk import Inquiry, Job, sure
from sim.plan.machines import degrees_of, machine_name, machine_of, reason_alone
from sim.plan.points import Price, cost_of, point_of
from sim.plan.question import Question
from sim.plan.result import PlanTrace, Reason
from sim.plan.search import greatest
from sim.plan.seek import seek
from sim.plan.sized import Sized, new_candidate
from sim.plan.trial import Outcome
from sim.report.figures import Resolved


def size_users(question: Question, hardware: str, price: Price, trace: PlanTrace) -> Inquiry[Sized]:
    """The candidate, without reseeding and sensitivity."""
    reason = Reason(code="no_fit", message="")
    machine: Resolved | None = None
    single: Outcome | None = None
    for degree in degrees_of(question):
        tried = machine_of(question, hardware, degree)
        if isinstance(tried, Reason):
            reason = reason if machine is not None else tried
            continue
        machine = tried
        [result] = yield [question.users(machine, 1)]
        single = sure(result)
        assert single is not None
        missing = reason_alone(single, machine, trace, "one user")
        if missing is None:
            return (yield from _most(question, machine, price, single))
        reason = missing
    candidate = new_candidate(hardware, machine, price, single)
    return Sized(replace(candidate, reasons=[reason]), machine, single)


def _most(question: Question, machine: Resolved, price: Price, single: Outcome) -> Inquiry[Sized]:
    settings = machine.settings
    devices = settings.tensor_parallel * settings.replicas
    usd = price.usd_per_hour

    def job(size: int, whole: bool) -> Job:
        return question.users(machine, size)

    found, outcomes = yield from seek(greatest(question.max_users), job)
    candidate = replace(
        new_candidate(settings.hardware, machine, price, single),
        points=[
            point_of(outcomes[size], settings.replicas, devices, usd, size)
            for size in sorted(outcomes)
        ],
        monotone=not found.exceptions,
        exceptions=found.exceptions,
    )
    if found.answer is None:
        message = f"not even one user is served well by {machine_name(machine)} in every run that was looked at"
        reason = Reason(code="no_users", message=message)
        return Sized(replace(candidate, reasons=[reason]), machine, single)
    users = found.answer
    candidate = replace(
        candidate,
        feasible=True,
        users=users,
        at_least=users == question.max_users,
        replicas=settings.replicas,
        devices=devices,
        cost=cost_of(outcomes[users], devices, usd),
        usd_per_user_hour=usd * devices / users if usd is not None else None,
    )
    return Sized(candidate, machine, single)
