"""Leaps: what a scheduler would do by itself, step after step, until something comes from outside; and that, done in one call.

A forecast says who decodes in each step to come: after a plan with the last chunks of prompts their rows join in, and who has all
its tokens leaves. `advance` then takes the scheduler to a later step: frames, ends, log and open plans are those of single steps. A
driver that knows how long steps take prices the forecast, waits for the next outside event, and advances to it.

Nobody is let in meanwhile, so where somebody waits the forecast ends with the first end. It covers decodes, and chunks of one prompt that
fill the budget; no preemption, copy, fork or transfer, and no content that depends on sampled tokens.
"""

from itertools import pairwise

import numpy as np
from msgspec import Struct

from engine.core import log as records
from engine.core.arrays import I32, I64, Index, filled
from engine.core.book import NO_INDEX, NO_ROWS, Book, OpenPlan
from engine.core.ids import RequestId
from engine.core.plan import Finish, Plan
from engine.core.planner import Planner
from engine.core.policy import Shares

_NO_STEPS: I64 = np.zeros(0, np.int64)


class Forecast(Struct, frozen=True, eq=False):
    """The steps from an open plan on. Steps are numbered from 1, the plan's own."""

    plan: Plan
    steps: int
    """How many are known; at least 2."""
    num_leaving: int
    """Sequences that sample their last token in the plan itself."""
    rows: Index
    """Who decodes in step 2, by rank."""
    starts: I32
    """The position that each of `rows` computes then."""
    lasts: I64
    """The step in which each of `rows` samples its last token."""
    soonest: int
    """The first of `lasts`; 0 where nobody decodes."""
    chunk: int
    """Positions of one prompt that every step computes; 0: only the plan itself has chunks, if any."""


class Ended(Struct, frozen=True):
    """Sequences that had their last token in one step."""

    step: int
    """Of the forecast."""
    requests: tuple[int, ...]
    """The request of each sequence, in plan order."""
    closed: tuple[int, ...]
    """Requests whose last sequence this was."""
    free_blocks: int
    """What memory said after it."""
    cached_blocks: int


class Advanced(Struct, frozen=True, eq=False):
    """What happened on the way."""

    plans: tuple[Plan, ...]
    """Open now, oldest first."""
    ended: tuple[Ended, ...]
    grown: I64
    """The step for which each new block was begun, ascending."""


def fills(plan: Plan, token_budget: int) -> bool:
    """Whether `plan` computes a chunk of one prompt beside its decodes, and has budget for nothing else."""
    decodes = plan.num_decodes
    return len(plan.rows) == decodes + 1 and decodes + int(plan.counts[decodes]) >= token_budget


def forecast(
    book: Book, plan: Plan, budget: int, *, beyond_ends: bool, most: int
) -> Forecast | None:
    """What follows `plan`, up to `most` steps; None where it is not the only open plan, or more than growth and ends may follow.

    The caller has made sure that nobody could come in: until the first end, or `beyond_ends` at all. O(rows).
    """
    if len(book.open) != 1 or book.open[0].plan is not plan:
        return None
    if (
        book.shared_tails
        or book.dependent
        or book.memory.keeps_tokens
        or book.open[0].gone
        or len(plan.copy_sources)
        or len(plan.fork_rows)
    ):
        return None
    table, rows, chunk = book.table, book.decoding, 0
    steps = most
    if book.prefilling:
        decodes = plan.num_decodes
        if not fills(plan, budget) or book.prefilling != [int(plan.rows[decodes])]:
            return None
        if len(rows) != decodes:
            return None
        start, chunk = int(plan.starts[decodes]), int(plan.counts[decodes])
        row = book.prefilling[0]
        if book.groups[RequestId(int(plan.requests[decodes]))].shared > start:
            return None  # Siblings wait for what it computes.
        # The step that completes the prompt is another one.
        steps = min(steps, (int(table.target[row]) - start - 1) // chunk)
        beyond_ends = False
    if not len(rows):
        return None if steps <= 1 or not chunk else _of(book, steps, rows, _NO_STEPS, chunk)
    starts = table.scheduled[rows]
    lasts: I64 = (table.limit[rows] - starts).astype(np.int64)
    ends = lasts.tolist()
    soonest: int = min(ends)
    if beyond_ends:
        steps = min(steps, max(ends))
    elif len(book.open[0].finishing):
        return None
    else:
        steps = min(steps, soonest)
    memory = book.memory
    size, free = memory.block_size, memory.free_blocks
    if len(ends) * ((steps - 1) // size + 1) > free:
        # Of these steps the plan's own needs no room.
        steps = _fitting(memory.room_of(rows) - starts + 1, size, free, steps)
    return _of(book, steps, rows, lasts, chunk, starts, soonest) if steps > 1 else None


def _of(
    book: Book,
    steps: int,
    rows: Index,
    lasts: I64,
    chunk: int,
    starts: I32 = NO_ROWS,
    soonest: int = 0,
) -> Forecast:
    entry = book.open[0]
    return Forecast(
        plan=entry.plan,
        steps=steps,
        num_leaving=len(entry.finishing),
        rows=rows,
        starts=starts,
        lasts=lasts,
        soonest=soonest,
        chunk=chunk,
    )


def advance(
    book: Book,
    planner: Planner,
    shares: Shares | None,
    ahead: Forecast,
    done: int,
    planned: int,
    lead: int,
) -> Advanced:
    """Commits the first `done` steps and opens those up to `planned`; a step is planned `lead` steps before the one before it commits."""
    plan, rows, starts, lasts = ahead.plan, ahead.rows, ahead.starts, ahead.lasts
    table, memory, first = book.table, book.memory, ahead.plan.step - 1
    entry = book.open.popleft()
    some_leave = 0 < ahead.soonest <= planned
    leaving: Index = (lasts <= planned).nonzero()[0] if some_leave else NO_INDEX
    if planned > 1 and len(rows):
        if some_leave:
            taken = np.minimum(lasts, planned) - 1
            table.scheduled[rows] = starts + taken
        else:
            taken = filled(len(rows), planned - 1)
            table.scheduled[rows] = starts + (planned - 1)
        if shares is not None:
            shares.charge_each(table.tenant[rows], taken)
    if ahead.chunk and planned > 1:
        table.scheduled[book.prefilling[0]] += (planned - 1) * ahead.chunk
    if some_leave:
        book.finish_decoding(rows[leaving].astype(np.int32), rows[lasts > planned])
    growth = _Growth(book, ahead, planned)
    ended: list[Ended] = []
    for step, going in _by_step(entry, rows, lasts, leaving, done):
        growth.up_to(step + lead)
        requests = table.request[going].tolist()
        closed = [
            request
            for row, request in zip(going, requests, strict=True)
            if book.end_sequence(first + step, row, Finish.LENGTH)
        ]
        ended.append(
            Ended(step, tuple(requests), tuple(closed), memory.free_blocks, memory.cached_blocks)
        )
    growth.up_to(planned)
    if not done:
        book.open.append(entry)
    opened = max(done + 1, 2)
    planner.passed(opened - 2)
    for step in range(opened, planned + 1):
        book.next_step = first + step
        if ahead.chunk:
            planner.open_again(plan, step - 1, _finishing(rows, lasts, step))
        elif some_leave:
            here = lasts >= step
            planner.open_ahead(
                rows[here] if len(book.decoding) != np.count_nonzero(here) else book.decoding,
                starts[here] + (step - 2),
                _finishing(rows, lasts, step),
            )
        else:
            planner.open_ahead(rows, starts + (step - 2), NO_ROWS)
    book.next_step = first + planned + 1
    return Advanced(tuple(e.plan for e in book.open), tuple(ended), growth.steps)


def _finishing(rows: Index, lasts: I64, step: int) -> I32:
    last = rows[lasts == step]
    return last.astype(np.int32) if len(last) else NO_ROWS


def _by_step(
    entry: OpenPlan, rows: Index, lasts: I64, leaving: Index, done: int
) -> list[tuple[int, list[int]]]:
    """(step, rows that have their last token then, in plan order) up to step `done`."""
    groups: dict[int, list[int]] = {}
    if done and len(entry.finishing):
        groups[1] = entry.finishing.tolist()
    if len(leaving):
        for step, row in zip(lasts[leaving].tolist(), rows[leaving].tolist(), strict=True):
            if step <= done:
                groups.setdefault(step, []).append(row)
    return sorted(groups.items())


class _Growth:
    """The blocks that a forecast's steps begin, given out in the order of steps."""

    def __init__(self, book: Book, ahead: Forecast, planned: int) -> None:
        """What is due up to step `planned`; gives nothing yet."""
        self._book = book
        self._first = ahead.plan.step - 1
        self._at = 0
        self._size = len(ahead.rows)
        self.steps: I64 = _NO_STEPS
        """For which each block is begun."""
        memory, rows = book.memory, ahead.rows
        if planned < 2 or not len(rows):
            return
        room = memory.room_of(rows) - ahead.starts
        if min(room.tolist()) > planned - 2:
            return
        steps, which, nth = _crossings(room, memory.block_size, planned - 1)
        steps += 2
        if ahead.soonest < planned:
            alive = ahead.lasts[which] >= steps
            steps, which, nth = steps[alive], which[alive], nth[alive]
        self.steps, self._which, self._nth, self._rows = steps, which, nth, rows[which]

    def up_to(self, step: int) -> None:
        """Gives out the blocks of all steps up to `step`."""
        at = self._at
        end = int(self.steps.searchsorted(step, side="right")) if len(self.steps) else 0
        if end <= at:
            return
        self._at = end
        rows, nth = self._rows[at:end], self._nth[at:end]
        if at and nth.any():
            nth = nth - np.bincount(self._which[:at], minlength=self._size)[self._which[at:end]]
        book = self._book
        blocks, num_fresh = book.memory.grow_each(rows, nth)
        if book.keeps_log:
            _record(book, self._first, self.steps[at:end], rows, blocks, num_fresh)
        book.memory.take_evicted()


def _fitting(room: I64, block_size: int, free: int, steps: int) -> int:
    """The largest number of steps up to `steps` whose crossings `free` frames can serve. O(rows log steps)."""

    def needed(count: int) -> int:
        return int((-((room - count) // block_size)).clip(min=0).sum())

    if needed(steps) <= free:
        return steps
    low, high = 1, steps
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= free else (low, middle)
    return low


def _crossings(room: I64, block_size: int, steps: int) -> tuple[I64, Index, Index]:
    """(steps ahead, index of the row, how many the row began before) of each block that is begun, as single steps would.

    A row has room for a block at most, so in rows' order of room one round of crossings follows the other.
    """
    order = room.argsort(kind="stable")
    room = room[order]
    if steps <= block_size:
        count = int(room.searchsorted(steps))
        return room[:count], order[:count], np.zeros(count, np.intp)
    rounds = np.arange(0, steps, block_size)
    ahead = (room + rounds[:, None]).reshape(-1)
    count = int(ahead.searchsorted(steps))
    nth = np.arange(count) // len(room)
    return ahead[:count], np.tile(order, len(rounds))[:count], nth


def _record(book: Book, first: int, ahead: I64, rows: Index, blocks: I32, num_fresh: int) -> None:
    """The log of the single steps, `ahead` of step `first`: for each, what was evicted for it and who grew."""
    bounds = [0, *(np.flatnonzero(np.diff(ahead)) + 1).tolist(), len(ahead)]
    row_list, block_list = rows.tolist(), blocks.tolist()
    for start, end in pairwise(bounds):
        step = first + int(ahead[start])
        if end > num_fresh:
            book.record(records.Evicted(step, tuple(block_list[max(start, num_fresh) : end])))
        book.record(records.Grew(step, tuple(row_list[start:end]), tuple(block_list[start:end])))
