"""A plan as CSV: a line for each point that was simulated. Computes nothing but picks."""

import csv
import io

from sim.plan.result import Candidate, PlanResult, Point


def to_csv(result: PlanResult) -> bytes:
    """All points of all candidates; `is_answer` marks the answers."""
    names = [clause.name for clause in result.slo.clauses]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            "hardware",
            "tensor_parallel",
            "replicas",
            "users",
            "is_answer",
            "meets",
            "stopped_s",
            *(f"{name}_{part}" for name in names for part in ("ms", "misses", "allowed")),
            "good_share",
            "submitted",
            "done",
            "rejected",
            "unfinished",
            "preemptions",
            "busy_share",
            "output_tokens_per_s",
            "usd_per_hour",
            "usd_per_million_output_tokens",
            "usd_per_million_tokens",
        ]
    )
    for candidate in result.candidates:
        for point in candidate.points:
            writer.writerow(_row(candidate, point))
    return text.getvalue().encode()


def is_answer(candidate: Candidate, point: Point) -> bool:
    """Whether the point is what was found."""
    if candidate.users is not None:
        return point.users == candidate.users
    return candidate.replicas is not None and point.replicas == candidate.replicas


def _row(candidate: Candidate, point: Point) -> list[object]:
    figures: list[object] = []
    for clause in point.clauses:
        figures += [clause.value_ms, clause.misses, clause.allowed]
    cost = point.cost
    return [
        candidate.hardware,
        candidate.tensor_parallel,
        point.replicas,
        point.users,
        is_answer(candidate, point),
        point.meets,
        point.stopped_s,
        *figures,
        point.good_share,
        point.submitted,
        point.done,
        sum(point.rejected.values()),
        point.unfinished,
        point.preemptions,
        point.busy_share,
        point.output_tokens_per_s,
        cost.usd_per_hour if cost is not None else None,
        cost.usd_per_million_output_tokens if cost is not None else None,
        cost.usd_per_million_tokens if cost is not None else None,
    ]
