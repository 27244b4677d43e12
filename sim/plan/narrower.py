"""Smaller tensor parallel degrees than the answer's: what each would take, or why it cannot do it. Runs nothing."""

from collections.abc import Sequence

from msgspec.structs import replace

from sim.plan.result import Candidate, Narrower, Reason
from sim.plan.trial import Outcome
from traces.report import numbers

BEGINNING = "Replicas of fewer devices:"
"""Of the sentence."""


def too_small(degree: int) -> Narrower:
    """The model, or a pool beside it, does not fit."""
    return Narrower(tensor_parallel=degree, reason=Reason(code="no_fit", message="too little memory for the model and a pool"))  # fmt: skip


def too_weak(degree: int, alone: Outcome) -> Narrower:
    """An idle machine misses already; its run may have been given up, so no figure of it is told."""
    if sum(alone.rejected.values()) > min(clause.allowed for clause in alone.clauses):
        reason = Reason(code="rejected", message="too little memory for some of the requests")
    else:
        reason = Reason(code="alone", message="too slow even with each request alone")
    return Narrower(tensor_parallel=degree, reason=reason)


def not_enough(degree: int, replicas: int) -> Narrower:
    """So many were tried."""
    count = numbers.counted(replicas, "replica")
    message = f"{count} {'is' if replicas == 1 else 'are'} not enough"
    return Narrower(tensor_parallel=degree, reason=Reason(code="replicas", message=message))


def as_sized(candidate: Candidate) -> Narrower:
    """What a degree took that was sized."""
    degree = candidate.tensor_parallel
    if candidate.replicas is None:
        return not_enough(degree, candidate.points[-1].replicas)
    return Narrower(tensor_parallel=degree, replicas=candidate.replicas)


def with_narrower(candidate: Candidate, looked_at: Sequence[Narrower]) -> Candidate:
    """The candidate with those of a smaller degree than its own."""
    degree = candidate.tensor_parallel
    return replace(candidate, narrower=[one for one in looked_at if one.tensor_parallel < degree])


def narrower_text(candidate: Candidate) -> list[str]:
    """A sentence, where there are any."""
    if not candidate.narrower:
        return []
    parts = [_said(candidate.hardware, one) for one in candidate.narrower]
    return [f"{BEGINNING} {'; '.join(parts)}."]


def _said(hardware: str, one: Narrower) -> str:
    degree = one.tensor_parallel
    name = f"{degree} x {hardware}"
    if one.replicas is None:
        return f"{name}, {one.reason.message if one.reason is not None else ''}"
    devices = f", {one.replicas * degree:,} devices in all" if degree > 1 else ""
    return f"{name}, {numbers.counted(one.replicas, 'replica')} would be needed{devices}"
