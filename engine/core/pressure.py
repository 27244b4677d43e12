"""What happens when frames run out: who gives way, by recompute or by swap, and how groups come back.

Knows the book and memory; knows no queue of new requests and no budget.
"""

from bisect import insort

import numpy as np
from msgspec import Struct

from engine.core import log as records
from engine.core.allocator import Grant
from engine.core.arrays import I32, Index
from engine.core.book import Book, Group, Status
from engine.core.config import SchedulerConfig
from engine.core.ids import RequestId
from engine.core.plan import Transfer
from engine.core.policy import youngest_victim
from engine.core.rows import State


class _Moving(Struct, frozen=True, eq=False):
    """A transfer in flight."""

    group: Group
    out: bool
    frames: I32


class Pressure:
    """Preemption and return of groups over a `Book`."""

    def __init__(self, book: Book, config: SchedulerConfig) -> None:
        self._book = book
        self._config = config
        self._moving: dict[int, _Moving] = {}
        self._next_transfer = 0
        self._started: list[Transfer] = []
        self.num_recompute = 0
        self.num_swap = 0

    @property
    def num_transfers(self) -> int:
        """Transfers in flight."""
        return len(self._moving)

    def take_transfers(self) -> list[Transfer]:
        """Transfers that were started since the last take."""
        started, self._started = self._started, []
        return started

    # -- making room -------------------------------------------------------------------------------------------

    def make_room(self, rows: Index) -> set[int]:
        """Gives each of `rows`, by rank, the frame that its next position needs; those that sit out this step.

        Frames that come back with a commit or a transfer are counted before anyone is preempted for more.
        """
        book, table = self._book, self._book.table
        stalled: set[int] = set()
        leaving = np.flatnonzero((table.state == State.OFF) | (table.state == State.ENDED))
        returning = sum(book.memory.held_by(int(row)) for row in leaving)
        returning += sum(len(moving.frames) for moving in self._moving.values() if moving.out)
        for row in rows.tolist():
            while table.state[row] == State.RUNNING:
                if self._serve(row):
                    break
                victim = None
                if not returning:
                    running = book.running()
                    known = book.known(running, book.computed())
                    victim = youngest_victim(table, running, known, row)
                if victim is None:
                    returning -= returning > 0
                    stalled.add(row)
                    break
                group = book.groups[RequestId(int(table.request[victim]))]
                returning += self.preempt(group, int(table.request[row]))
        return stalled

    def _serve(self, row: int) -> bool:
        """Gives `row` a block for its next position, or a copy of its own of the block that it shares."""
        book, memory = self._book, self._book.memory
        if not memory.free_blocks and row not in book.shared_tails:
            return False
        position = int(book.table.scheduled[row])
        if row in book.shared_tails and memory.shares_tail(row, position):
            copy = memory.make_writable(row, position)
            if copy is None:
                return False
            book.record_evictions()
            book.record(records.Copied(book.next_step, row, *copy))
        elif len(memory.short(np.array([row]), np.array([position + 1]))):
            blocks = memory.grow(np.array([row]))
            if blocks is None:
                return False
            book.record_evictions()
            book.record(records.Grew(book.next_step, (row,), (int(blocks[0]),)))
        book.shared_tails.discard(row)
        return True

    def take_back_copies(self, rows: list[int]) -> None:
        """`rows` do not run in the step that is being planned: what was copied for it is not."""
        book = self._book
        for row, source, copy in book.memory.uncopy(rows):
            book.record(records.Uncopied(book.next_step, row, source, copy))

    # -- going off ---------------------------------------------------------------------------------------------

    def preempt(self, group: Group, asking: int) -> int:
        """Takes `group` off for the request `asking`; how many frames come back only with a commit or a transfer."""
        book, table = self._book, self._book.table
        rows = [row for row in group.rows if table.state[row] == State.RUNNING]
        computed = book.computed()
        known = book.known(np.array(rows), computed)
        swap, swap_ns, recompute_ns = self._choose(group, rows, known)
        group.swap = swap
        book.record(
            records.Preempted(
                book.next_step,
                group.request.id,
                "swap" if swap else "recompute",
                int(known.sum()),
                swap_ns,
                recompute_ns,
                asking,
            )
        )
        self.take_back_copies(rows)
        for row, tokens in zip(rows, known.tolist(), strict=True):
            book.stop_running(row)
            table.state[row] = State.OFF
            table.known[row] = tokens
        group.status = Status.LEAVING
        book.num_off += 1
        book.seats -= len(group.rows)
        held = sum(book.memory.held_by(row) for row in rows)
        if any(book.named(row) for row in rows):
            if book.memory.shares_content:
                for row in rows:
                    book.memory.publish(row, int(computed[row]))
            return held
        self.leave(book.next_step, group)
        return held if group.status is Status.MOVING_OUT else 0

    def _choose(self, group: Group, rows: list[int], known: I32) -> tuple[bool, int, int]:
        """(swap?, estimate for swap, estimate for recompute); estimates in ns, 0 where nothing was compared.

        What the sequences share moves once, each way, and is computed once.
        """
        mode, costs = self._config.preemption, self._config.swap_costs
        if mode != "auto" or costs is None:
            return mode == "swap", 0, 0
        memory = self._book.memory
        blocks = len(np.unique(np.concatenate([memory.blocks_of(row) for row in rows])))
        swap_ns = round(2e9 * blocks * costs.block_bytes / costs.link_bytes_per_s)
        common = min(group.request.num_prompt, int(known.min()) - 1)
        shared = common // memory.block_size * memory.block_size
        again = int(known.sum()) - (len(rows) - 1) * shared
        recompute_ns = round(1e9 * again / costs.prefill_tokens_per_s)
        return swap_ns < recompute_ns, swap_ns, recompute_ns

    def leave(self, step: int, group: Group) -> None:
        """`group` is off and no open plan names it: its frames go, to the host where that was chosen and has room."""
        book, table = self._book, self._book.table
        rows = [row for row in group.rows if table.state[row] == State.OFF]
        for row in rows:
            # The next token to sample needs one position computed again.
            table.scheduled[row] = min(table.scheduled[row], table.known[row] - 1)
        if group.swap and table.scheduled[rows[0]] < group.shared:
            # The others hold frames that are still to be computed.
            self.recompute_instead(step, group)
        if group.swap and self._move_out(step, group, rows):
            return
        self.num_recompute += 1
        for row in rows:
            book.give_back(step, row)
        self._can_resume(group, Status.PREEMPTED)

    def recompute_instead(self, step: int, group: Group) -> None:
        """`group`, which is off, holds states that are not to be kept: they do not go to the host."""
        if group.swap:
            group.swap = False
            self._book.record(records.SwapEnded(step, group.request.id, -1, ok=False))

    def _move_out(self, step: int, group: Group, rows: list[int]) -> bool:
        book, table, memory = self._book, self._book.table, self._book.memory
        members = [(row, int(table.scheduled[row])) for row in rows]
        for row, valid in members:
            memory.publish(row, valid)
        move = memory.swap_out(group.request.id, members) if any(v for _, v in members) else None
        if move is None:
            book.record(records.SwapEnded(step, group.request.id, -1, ok=False))
            return False
        self.num_swap += 1
        group.status = Status.MOVING_OUT
        self._start(step, group, out=True, frames=move.frames, hosts=move.hosts)
        return True

    def _start(self, step: int, group: Group, *, out: bool, frames: I32, hosts: I32) -> None:
        number, self._next_transfer = self._next_transfer, self._next_transfer + 1
        self._moving[number] = _Moving(group, out, frames)
        self._started.append(Transfer(number, group.request.id, out, frames, hosts))
        direction = "out" if out else "in"
        self._book.record(
            records.SwapStarted(step, group.request.id, direction, number, len(frames))
        )

    def _can_resume(self, group: Group, status: Status) -> None:
        group.status = status
        insort(self._book.off, (group.rank, group.request.id))

    # -- coming back -------------------------------------------------------------------------------------------

    def resume(self, group: Group, reserve: int) -> bool:
        """Brings back `group`, the first of `off`, if it fits now: it runs, or begins to move in."""
        book, table, memory = self._book, self._book.table, self._book.memory
        rows = [row for row in group.rows if table.state[row] == State.OFF]
        members = [(row, int(table.known[row])) for row in rows]
        if group.status is Status.SWAPPED:
            valid = int(table.scheduled[rows[0]])
            move = memory.swap_in(group.request.id, members, valid, reserve)
            if isinstance(move, Grant):
                return False
            self._back(group)
            self._admitted(rows, [memory.last_hits] + [0] * (len(rows) - 1))
            group.shared = 0
            group.status = Status.MOVING_IN
            self._start(book.next_step, group, out=False, frames=move.frames, hosts=move.hosts)
            return True
        common = min(group.request.num_prompt, *(known - 1 for _, known in members))
        if memory.admit_group(members, common, reserve) is not Grant.OK:
            return False
        self._back(group)
        shared, first = common // memory.block_size, memory.last_hits
        group.shared = shared * memory.block_size if len(rows) > 1 else 0
        self._admitted(rows, [first] + [shared] * (len(rows) - 1))
        for row in rows:
            table.scheduled[row] = (first if row == rows[0] else shared) * memory.block_size
            book.resume(row, moved_in=False)
        group.status = Status.RUNNING
        return True

    def _back(self, group: Group) -> None:
        book = self._book
        book.off.remove((group.rank, group.request.id))
        book.num_off -= 1
        book.seats += len(group.rows)

    def _admitted(self, rows: list[int], shared: list[int]) -> None:
        book = self._book
        book.record_evictions()
        for row, count in zip(rows, shared, strict=True):
            book.table.floor[row] = book.table.known[row]
            blocks = tuple(book.memory.blocks_of(row).tolist())
            request = int(book.table.request[row])
            book.record(records.Admitted(book.next_step, request, row, blocks, count))

    # -- transfers ---------------------------------------------------------------------------------------------

    def in_flight(self, number: int) -> bool:
        """Whether transfer `number` has begun and is not over."""
        return number in self._moving

    def transfer_done(self, number: int, *, ok: bool) -> None:
        """Takes in the end of a transfer that is in flight; a failed one leaves its group to recompute."""
        book, memory = self._book, self._book.memory
        moving = self._moving.pop(number)
        group = moving.group
        request_id = group.request.id
        book.record(records.SwapEnded(book.next_step, request_id, number, ok))
        if group.status is not Status.ENDED and not moving.out and not ok:
            for row in group.rows:
                if book.table.state[row] == State.OFF:
                    memory.silence(row)
        memory.moved(moving.frames)
        if group.status is Status.ENDED:
            memory.forget(request_id)
        elif moving.out and ok:
            self._can_resume(group, Status.SWAPPED)
        elif moving.out:
            memory.forget(request_id)
            for row in group.rows:
                book.table.scheduled[row] = 0
            self._can_resume(group, Status.PREEMPTED)
        else:
            memory.forget(request_id)
            if ok:
                self._run_again(group)
            else:
                self._lose(group)

    def _run_again(self, group: Group) -> None:
        group.status = Status.RUNNING
        table = self._book.table
        for row in group.rows:
            if table.state[row] == State.OFF:
                self._book.resume(row, moved_in=True)
                if len(group.rows) > 1:
                    self._book.shared_tails.add(row)

    def _lose(self, group: Group) -> None:
        book = self._book
        book.num_off += 1
        book.seats -= len(group.rows)
        for row in group.rows:
            if book.table.state[row] == State.OFF:
                book.give_back(book.next_step, row)
        self._can_resume(group, Status.PREEMPTED)

    def drop(self, group: Group) -> None:
        """Takes `group`, which is off and ends, out of what can resume, and its content off the host."""
        book = self._book
        if group.status in (Status.PREEMPTED, Status.SWAPPED):
            book.off.remove((group.rank, group.request.id))
        if group.status is Status.SWAPPED:
            book.memory.forget(group.request.id)
        if group.status not in (Status.RUNNING, Status.MOVING_IN):
            book.num_off -= 1
