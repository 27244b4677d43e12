"""Leaps: many steps in one call, where nothing but growth happens.

A leap of k equals k single steps in state and in log. It repeats a step of decodes, or of decodes and a chunk of one prompt that
fills the budget, so that nobody else could compute in it; it contains no admission, preemption, copy or transfer, and an end only
as a single step's commit brings it: rows may sample their last token in the last of its steps. It may follow an open plan, as a
single step would, as long as that plan's commit changes nothing but positions. Nobody leaps while blocks are known by their tokens,
because what is published next would depend on tokens that come with the commit.
"""

from itertools import pairwise

import msgspec
import numpy as np

from engine.core import log as records
from engine.core.arrays import I32, I64, Index
from engine.core.book import Book
from engine.core.ids import RequestId
from engine.core.plan import Plan


def fills(plan: Plan, token_budget: int) -> bool:
    """Whether `plan` computes a chunk of one prompt beside its decodes, and has budget for nothing else."""
    decodes = plan.num_decodes
    return len(plan.rows) == decodes + 1 and decodes + int(plan.counts[decodes]) >= token_budget


def most_steps(book: Book, plan: Plan) -> int:
    """How many steps `plan`, the last that was opened, may have in all, and memory has room for; 1 where it must stay single.

    The caller has made sure that nobody who waits could be admitted meanwhile.
    """
    entry = book.open[-1] if book.open else None
    if entry is None or entry.plan is not plan or plan.steps > 1:
        return 1
    quiet = not (
        book.finishing
        or book.shared_tails
        or book.dependent
        or book.memory.keeps_tokens
        or any(e.gone or len(e.plan.copy_sources) for e in book.open)
    )
    if not quiet:
        return 1
    table, decodes, starts = book.table, plan.num_decodes, plan.starts
    steps = 0
    if decodes == len(plan.rows):
        if book.prefilling or len(book.decoding) != decodes:
            return 1
    else:
        chunked = int(plan.rows[decodes])
        if book.prefilling[:1] != [chunked] or len(book.decoding) != decodes:
            return 1
        if book.groups[RequestId(int(plan.requests[decodes]))].shared > starts[decodes]:
            return 1  # Siblings wait for what it computes.
        # The step that completes the prompt is another one.
        left = int(table.target[chunked]) - int(starts[decodes]) - 1
        steps = left // int(plan.counts[decodes])
        starts = starts[:decodes]
    if decodes:
        before_the_end = min((table.limit[book.decoding] - starts).tolist()) - 1
        steps = min(steps, before_the_end) if steps else before_the_end
    if steps <= 1 or not decodes:
        return max(1, steps)
    memory = book.memory
    free, size = memory.free_blocks, memory.block_size
    if decodes * (steps // size + 1) <= free:
        return steps
    # The step `ahead` steps after the plan's own computes position starts + ahead.
    return fitting(memory.room_of(book.decoding) - starts, size, free, steps)


def extend(book: Book, plan: Plan, steps: int) -> Plan:
    """Allocates what steps 2 to `steps` of `plan` need, at most `most_steps` of them; the longer plan."""
    table, memory = book.table, book.memory
    rows, starts = book.decoding, plan.starts[: plan.num_decodes]
    room = memory.room_of(rows) - starts
    delta_rows, delta_cols, delta_blocks = plan.delta_rows, plan.delta_cols, plan.delta_blocks
    if len(room) and min(room.tolist()) < steps:
        ahead, which, nth = crossings(room, memory.block_size, steps)
        grown = rows[which]
        blocks, num_fresh = memory.grow_each(grown, nth)
        if book.keeps_log:
            record_growth(book, plan.step, ahead, grown, blocks, num_fresh)
        memory.take_evicted()
        more_rows, more_cols, more_blocks = memory.take_deltas()
        if len(delta_rows):
            delta_rows = np.concatenate([delta_rows, more_rows])
            delta_cols = np.concatenate([delta_cols, more_cols])
            delta_blocks = np.concatenate([delta_blocks, more_blocks])
        else:
            delta_rows, delta_cols, delta_blocks = more_rows, more_cols, more_blocks
    if len(rows) == len(plan.rows):
        table.scheduled[rows] = plan.starts + steps
    else:
        table.scheduled[plan.rows] = plan.starts + steps * plan.counts
    longer = msgspec.structs.replace(
        plan, steps=steps, delta_rows=delta_rows, delta_cols=delta_cols, delta_blocks=delta_blocks
    )
    book.open[-1].plan = longer
    book.next_step += steps - 1
    return longer


def fitting(room: I64, block_size: int, free: int, steps: int) -> int:
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


def crossings(room: I64, block_size: int, steps: int) -> tuple[I64, Index, Index]:
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


def record_growth(
    book: Book, first: int, ahead: I64, rows: Index, blocks: I32, num_fresh: int
) -> None:
    """The log of the single steps, `ahead` of step `first`: for each, what was evicted for it and who grew."""
    bounds = [0, *(np.flatnonzero(np.diff(ahead)) + 1).tolist(), len(ahead)]
    row_list, block_list = rows.tolist(), blocks.tolist()
    for start, end in pairwise(bounds):
        step = first + int(ahead[start])
        if end > num_fresh:
            book.record(records.Evicted(step, tuple(block_list[max(start, num_fresh) : end])))
        book.record(records.Grew(step, tuple(row_list[start:end]), tuple(block_list[start:end])))
