"""The call journal: one record for every call that a driver made to the core, with its time, arguments and answer.

Records hold ints, strings and tuples only and compare by value; with the decision log they are what a recording is made
of, and what a replay must give again. Knows nothing of files and of how calls are made.
"""

import zlib

from msgspec import Struct

from engine.core.ids import TimeNs
from engine.core.plan import Blocked, Finish, Idle, Plan, Rejected, Request, Results, StepFailed


class Submit(Struct, frozen=True, tag="submit"):
    """`submit(request, now)`."""

    call: int
    now: int
    request: int
    num_prompt: int
    max_tokens: int | None
    rejected: str | None
    """Code of the rejection."""


class Abort(Struct, frozen=True, tag="abort"):
    """`abort(request, now)`."""

    call: int
    now: int
    request: int
    ended: bool


class Schedule(Struct, frozen=True, tag="schedule"):
    """`schedule(now)`."""

    call: int
    now: int
    answer: str
    """`plan`, `idle` or `blocked`; for a plan the rest is filled in."""
    step: int = -1
    num_rows: int = 0
    num_tokens: int = 0
    digest: int = 0
    """CRC-32 of the plan's columns, so that a replay is held to every row, position and frame."""


class Commit(Struct, frozen=True, tag="commit"):
    """`commit(plan, results, now)`."""

    call: int
    now: int
    step: int
    started: int
    """When the model began this step."""
    ended: int
    """When its results were there; the commit follows at `now`."""
    stops: tuple[tuple[int, int], ...]
    """(index into the plan's sampling rows, `Finish`) of those that did not go on."""
    failed: str | None
    """The message, where the whole step failed."""


Call = Submit | Abort | Schedule | Commit


def submitted(call: int, now: TimeNs, request: Request, answer: Rejected | None) -> Submit:
    """The record of a submission."""
    code = answer.code if answer is not None else None
    return Submit(call, now, request.id, request.num_prompt, request.max_tokens, code)


def scheduled(call: int, now: TimeNs, answer: Plan | Idle | Blocked) -> Schedule:
    """The record of what `schedule` answered."""
    if not isinstance(answer, Plan):
        return Schedule(call, now, "idle" if isinstance(answer, Idle) else "blocked")
    rows, tokens = len(answer.rows), answer.num_tokens
    return Schedule(call, now, "plan", answer.step, rows, tokens, plan_digest(answer))


def committed(
    call: int, now: TimeNs, plan: Plan, results: Results | StepFailed, started: int, ended: int
) -> Commit:
    """The record of a commit; its step ran from `started` to `ended`."""
    if isinstance(results, StepFailed):
        return Commit(call, now, plan.step, started, ended, (), results.message)
    stopping = results.stops.nonzero()[0].tolist()
    stops = tuple((index, int(Finish(results.stops[index]))) for index in stopping)
    return Commit(call, now, plan.step, started, ended, stops, None)


def plan_digest(plan: Plan) -> int:
    """CRC-32 of a plan's columns."""
    digest = plan.num_decodes
    for column in (
        plan.rows,
        plan.requests,
        plan.starts,
        plan.counts,
        plan.samples,
        plan.delta_rows,
        plan.delta_cols,
        plan.delta_blocks,
    ):
        digest = zlib.crc32(column.tobytes(), digest)
    return digest
