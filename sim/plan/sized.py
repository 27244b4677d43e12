"""A kind of machine on its way to an answer: the candidate as far as it is known, and what later inquiries go on from."""

from msgspec.structs import replace

from sim.plan.points import Price, point_of
from sim.plan.result import Candidate
from sim.plan.trial import Outcome
from sim.report.figures import Resolved


class Sized:
    """What an inquiry found, and what later ones go on from."""

    def __init__(
        self, candidate: Candidate, machine: Resolved | None, alone: Outcome | None
    ) -> None:
        self.candidate = candidate
        self.machine = machine
        """Of one replica; None where the model fits none."""
        self.alone = alone


def with_replicas(machine: Resolved, replicas: int) -> Resolved:
    """The machine so many times."""
    return replace(machine, settings=replace(machine.settings, replicas=replicas))


def new_candidate(
    hardware: str, machine: Resolved | None, price: Price, alone: Outcome | None
) -> Candidate:
    """A candidate of which no more is known than this."""
    return Candidate(
        hardware=machine.hardware.name if machine is not None else hardware,
        tensor_parallel=machine.settings.tensor_parallel if machine is not None else 1,
        usd_per_device_hour=price.usd_per_hour,
        price_as_of=price.as_of,
        price_source=price.source,
        feasible=False,
        reasons=[],
        replicas=None,
        users=None,
        devices=None,
        cost=None,
        usd_per_user_hour=None,
        monotone=None,
        exceptions=[],
        alone=point_of(alone, 1, 1, None) if alone is not None else None,
        points=[],
        bound=None,
        autoscaling=None,
        reseeding=None,
        sensitivity=[],
    )
