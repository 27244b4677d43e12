"""What would do where nothing that was looked at does. Knows the result; computes nothing but how far off the nearest machine is."""

import math
from typing import Final

from sim.plan.result import Candidate, PlanResult
from traces.judge import ClauseFigure
from traces.slo import spell_ms

_NARROWER: Final[dict[str, tuple[str, ...]]] = {
    "fp32": ("bf16", "fp8", "int4"),
    "fp16": ("fp8", "int4"),
    "bf16": ("fp8", "int4"),
    "fp8": ("int4",),
    "int8": ("int4",),
}
"""Types of fewer bits than a type of weights has; none below the others."""


def advice(result: PlanResult) -> str:
    """A sentence; empty where nothing can be said."""
    codes = {reason.code for candidate in result.candidates for reason in candidate.reasons}
    parts = _looser(result)
    narrower = _NARROWER.get(str(result.settings.get("dtype")), ())
    if "alone" in codes:
        fewer = f" or fewer bits (--set dtype={narrower[0]})" if narrower else ""
        parts.append(f"a smaller model{fewer}")
    unfit = _said(result, "no_fit")
    if "leaves no room" in unfit and result.settings.get("kv_gb") is not None:
        parts.append("a larger pool (--set kv_gb=N, or without it what fits)")
    elif "leaves no room" in unfit:
        fewer = (
            f"fewer bits a weight (--set dtype={' or '.join(narrower)}), or " if narrower else ""
        )
        parts.append(f"{fewer}devices with more memory")
    if "does not divide" in unfit:
        parts.append("another degree (--set tensor_parallel=N; without it several are tried)")
    refused = _said(result, "rejected")
    if "_exceeded" in refused:
        parts.append("room for the longest requests, or leaving them out (--only-fitting)")
    if "empty_prompt" in refused or "bad_max_tokens" in refused:
        parts.append("a trace without empty prompts and answers of no token, which nothing can run")
    if "replicas" in codes:
        parts.append("more replicas than were allowed (--max-replicas)")
    if "no_users" in codes:
        parts.append("more devices for each user (--set replicas=N), or looser limits")
    return f"What could do: {'; '.join(dict.fromkeys(parts))}." if parts else ""


def _said(result: PlanResult, code: str) -> str:
    """All that was said for this reason."""
    reasons = (reason for candidate in result.candidates for reason in candidate.reasons)
    return " ".join(reason.message for reason in reasons if reason.code == code)


def _looser(result: PlanResult) -> list[str]:
    """Limits that the nearest of the machines keeps while it is idle."""
    near = [
        (max(_off(clause) for clause in late), candidate, late)
        for candidate in result.candidates
        if any(reason.code == "alone" for reason in candidate.reasons)
        and (late := _late(candidate))
    ]
    if not near:
        return []
    _, candidate, late = min(near, key=lambda each: each[0])
    limits = ",".join(f"{clause.name}={spell_ms(_up(clause.value_ms or 0.0))}" for clause in late)
    degree = candidate.tensor_parallel
    machine = f"{degree} x {candidate.hardware}" if degree > 1 else candidate.hardware
    return [f"limits from {limits} on, which an idle {machine} keeps (under load it takes more)"]


def _late(candidate: Candidate) -> list[ClauseFigure]:
    clauses = candidate.alone.clauses if candidate.alone is not None else []
    late = [clause for clause in clauses if clause.misses > clause.allowed]
    return late if all(clause.value_ms is not None for clause in late) else []


def _off(clause: ClauseFigure) -> float:
    return (clause.value_ms or math.inf) / clause.limit_ms


def _up(value: float) -> float:
    """The next value of two digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step - 1e-9) * step:.6g}")
