"""The call journal: one record for every call that a driver made to the core, with its time, arguments and answer.

Records hold ints, floats, strings and tuples only and compare by value; with the decision log they are what a recording is
made of, and what a replay must give again. Content and names appear under aliases. Knows nothing of files and of how calls are
made.
"""

import zlib

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.core.aliases import Aliases, Blocks
from engine.core.ids import RequestId, TimeNs
from engine.core.plan import (
    Blocked,
    Finish,
    Idle,
    Outcome,
    Plan,
    Rejected,
    Request,
    Results,
    StepFailed,
    Transfer,
)


class Submit(Struct, frozen=True, tag="submit"):
    """`submit(request, now)`."""

    call: int
    now: int
    request: int
    num_prompt: int
    max_tokens: int | None
    rejected: str | None
    """Code of the rejection."""
    num_sequences: int = 1
    content: tuple[int, ...] | None = None
    """A dense id for each full block of the prompt; it stands for the whole prefix up to the block's end. None: no content."""
    salt: int = 0
    tenant: int = 0
    weight: float = 1.0
    priority: int = 0
    deadline: int | None = None


class Abort(Struct, frozen=True, tag="abort"):
    """`abort(request, now)`."""

    call: int
    now: int
    request: int
    ended: bool


class Expire(Struct, frozen=True, tag="expire"):
    """`expire(now)`."""

    call: int
    now: int
    expired: tuple[int, ...]
    """Requests that it ended."""


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
    blocks: Blocks = ()
    """(index into the plan's sampling rows, dense id) of each accepted token that completes a block: the id of that block."""


class Transferred(Struct, frozen=True, tag="transferred"):
    """`transfer_done(transfer, ok, now)`."""

    call: int
    now: int
    transfer: int
    ok: bool
    started: int
    """When the copying began."""
    ended: int
    """When it was done; the call follows at `now`."""
    digest: int
    """CRC-32 of the transfer's frames and host blocks."""


Call = Submit | Abort | Expire | Schedule | Commit | Transferred


def submitted(
    call: int, now: TimeNs, request: Request, answer: Rejected | None, aliases: Aliases
) -> Submit:
    """The record of a submission."""
    content = aliases.prompt(request)
    if answer is not None:
        aliases.forget(request.id)
    return Submit(
        call=call,
        now=now,
        request=request.id,
        num_prompt=request.num_prompt,
        max_tokens=request.max_tokens,
        rejected=answer.code if answer is not None else None,
        num_sequences=request.num_sequences,
        content=content,
        salt=aliases.number(request.salt),
        tenant=aliases.number(request.tenant),
        weight=request.weight,
        priority=request.priority,
        deadline=request.deadline,
    )


def scheduled(call: int, now: TimeNs, answer: Plan | Idle | Blocked, aliases: Aliases) -> Schedule:
    """The record of what `schedule` answered."""
    if isinstance(answer, Plan):
        for request, _, row in answer.admitted:
            aliases.begin(request, row)
        for request, _, _ in answer.admitted:
            aliases.forget(request)
    if not isinstance(answer, Plan):
        return Schedule(call, now, "idle" if isinstance(answer, Idle) else "blocked")
    rows, tokens = len(answer.rows), answer.num_tokens
    return Schedule(call, now, "plan", answer.step, rows, tokens, plan_digest(answer))


def committed(
    call: int,
    now: TimeNs,
    plan: Plan,
    results: Results | StepFailed,
    outcome: Outcome,
    started: int,
    ended: int,
    aliases: Aliases,
) -> Commit:
    """The record of a commit; its step ran from `started` to `ended`."""
    if isinstance(results, StepFailed):
        return Commit(call, now, plan.step, started, ended, (), results.message)
    stopping = results.stops.nonzero()[0].tolist()
    stops = tuple((index, int(Finish(results.stops[index]))) for index in stopping)
    blocks = _blocks(plan, results, outcome, aliases)
    return Commit(call, now, plan.step, started, ended, stops, None, blocks)


def _blocks(plan: Plan, results: Results, outcome: Outcome, aliases: Aliases) -> Blocks:
    rows, positions, tokens = results.rows, plan.sampled_positions, results.tokens
    if len(outcome.rows) == len(rows):
        return aliases.accept(rows, positions, tokens)
    kept = np.flatnonzero(np.isin(rows, outcome.rows))
    blocks = aliases.accept(rows[kept], positions[kept], tokens[kept])
    return tuple((int(kept[place]), name) for place, name in blocks)


def expired(call: int, now: TimeNs, requests: tuple[RequestId, ...], aliases: Aliases) -> Expire:
    """The record of an expiry."""
    for request in requests:
        aliases.forget(request)
    return Expire(call, now, requests)


def aborted(call: int, now: TimeNs, request: RequestId, ended: bool, aliases: Aliases) -> Abort:
    """The record of an abort."""
    aliases.forget(request)
    return Abort(call, now, request, ended)


def transferred(
    call: int, now: TimeNs, transfer: Transfer, ok: bool, started: int, ended: int
) -> Transferred:
    """The record of a transfer's end; it ran from `started` to `ended`."""
    digest = _crc(0, transfer.frames, transfer.hosts)
    return Transferred(call, now, transfer.id, ok, started, ended, digest)


def plan_digest(plan: Plan) -> int:
    """CRC-32 of a plan's columns."""
    return _crc(
        plan.num_decodes,
        plan.rows,
        plan.requests,
        plan.starts,
        plan.counts,
        plan.samples,
        plan.fork_from,
        plan.fork_rows,
        np.array(plan.admitted, np.int64),
        plan.copy_sources,
        plan.copy_targets,
        plan.move_rows,
        plan.move_parents,
        plan.delta_rows,
        plan.delta_cols,
        plan.delta_blocks,
    )


def _crc(digest: int, *columns: NDArray[np.generic]) -> int:
    for column in columns:
        digest = zlib.crc32(column.tobytes(), digest)
    return digest
