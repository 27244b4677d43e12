"""Which machines are tried for a kind of hardware, and why one cannot do it at all. Runs nothing."""

from collections.abc import Sequence
from typing import Final

from engine.core.errors import ConfigError
from sim.plan.question import Question
from sim.plan.result import PlanTrace, Reason
from sim.plan.too_slow import explain
from sim.plan.trial import Outcome
from sim.report.figures import Resolved
from sim.sweep.render import show_ms
from traces.checked import FileError
from traces.report import numbers
from traces.schema import MAX_ARRIVAL_NS

DEGREES: Final = (1, 2, 4, 8)
"""Devices that a replica may be spread over."""
ALONE_GAP_S: Final = 1_000_000
"""Between requests, or sessions, that are to meet nobody, however slow the machine."""
_HINTS: Final = {
    "context_exceeded": "raise it with --set max_context=N, or leave out what it cannot hold with --only-fitting",
    "pool_exceeded": "give it a larger pool: more devices with --set tensor_parallel=N, or kv_dtype=fp8",
}


def degrees_of(question: Question) -> Sequence[int]:
    """The tensor parallel degrees to try, smallest first: the one that was set, or all."""
    given = question.settings.get("tensor_parallel")
    return DEGREES if given is None else (given,)


def machine_of(question: Question, hardware: str, degree: int, **more: object) -> Resolved | Reason:
    """The machine, or why the model does not fit it.

    Raises:
        FileError: a table that the settings name cannot be used, whatever the machine.
    """
    try:
        return question.machine(hardware=hardware, tensor_parallel=degree, **more)
    except FileError:
        raise
    except ConfigError as error:
        return Reason(code="no_fit", message=error.message)


def alone_settings(trace: PlanTrace) -> dict[str, object]:
    """What makes every request, or session, of the trace meet an idle machine, once each; of very many the gaps are as long as fit in time."""
    number = trace.sessions or trace.requests
    gap = min(ALONE_GAP_S, MAX_ARRIVAL_NS // 10**9 // max(1, number))
    return {
        "arrivals": f"every:{gap}",
        "replicas": 1,
        "rate_scale": 1.0,
        "time_scale": 1.0,
        "resample": False,
        "open_loop": False,
    }


def machine_name(machine: Resolved) -> str:
    """`H100`, `2 x H100` where a replica is spread over two."""
    degree = machine.settings.tensor_parallel
    return f"{degree} x {machine.hardware.name}" if degree > 1 else machine.hardware.name


def reason_alone(
    outcome: Outcome, resolved: Resolved, trace: PlanTrace, whom: str
) -> Reason | None:
    """Why no number of machines will do, where an idle one does not; `whom` it serves: "each request alone", "one user"."""
    machine = machine_name(resolved)
    if outcome.meets:
        return None
    rejected = sum(outcome.rejected.values())
    least = min(clause.allowed for clause in outcome.clauses)
    if rejected > least:
        codes = ", ".join(f"{count:,} {code}" for code, count in outcome.rejected.items())
        hints = [hint for code, hint in _HINTS.items() if code in outcome.rejected]
        return Reason(
            code="rejected",
            message=f"{machine} can never run {rejected:,} of {numbers.counted(outcome.submitted, 'request')} ({codes}), and the promises allow "
            f"{least:,} misses{'; ' if hints else ''}{', or '.join(hints)}",
        )
    late = [clause for clause in outcome.clauses if clause.misses > clause.allowed]
    parts = [
        f"{clause.name} is {'without end' if clause.value_ms is None else show_ms(clause.value_ms)} (limit {show_ms(clause.limit_ms)})"
        for clause in late
    ]
    found = " and ".join(parts) or f"only {outcome.good_share or 0:.1%} keep every limit"
    why = "".join(f"; {sentence}" for sentence in explain(late, resolved, trace))
    return Reason(code="alone", message=f"even with {whom} on an idle {machine}, {found}{why}")
