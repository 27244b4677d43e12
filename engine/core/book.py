"""Book: which sequences run, which are off, which are over, and the moves between these states. Decides nothing.

A *group* is a request that has rows: its sequences are admitted and preempted together.

    waiting -> running <-> leaving -> preempted -> running                 recompute
                           leaving -> moving out -> swapped -> moving in -> running
    any of these -> ended

`leaving`: preempted while an open plan names one of its rows; that plan's commit moves it on.
"""

from bisect import insort
from collections import deque
from enum import Enum

import numpy as np

from engine.core import log as records
from engine.core.allocator import Allocator
from engine.core.arrays import I32, Index
from engine.core.ids import RequestId
from engine.core.plan import Finish, Plan
from engine.core.policy import insert_by_rank
from engine.core.queue import Waiting
from engine.core.rows import RowTable, State

NO_ROWS: I32 = np.zeros(0, np.int32)
NO_INDEX: Index = np.zeros(0, np.intp)


class Status(Enum):
    """Where a group stands."""

    RUNNING = "running"
    LEAVING = "leaving"
    PREEMPTED = "preempted"
    MOVING_OUT = "moving out"
    SWAPPED = "swapped"
    MOVING_IN = "moving in"
    ENDED = "ended"


class Group:
    """A request with rows. `rows` are those of its sequences that have not ended, first sequence first."""

    __slots__ = ("rank", "request", "rows", "shared", "status", "swap")

    def __init__(self, waiting: Waiting, rank: int, rows: list[int]) -> None:
        self.request = waiting.request
        self.rank = rank
        self.rows = rows
        self.status = Status.RUNNING
        self.swap = False
        """LEAVING: to the host, rather than to be computed again."""
        self.shared = 0
        """Leading positions that the first sequence computes for all: the others wait for them."""


class OpenPlan:
    """A plan that has not committed, and what happened to its rows since."""

    __slots__ = ("_names", "finishing", "gone", "plan")

    def __init__(self, plan: Plan, finishing: I32) -> None:
        self.plan = plan
        self.finishing = finishing
        """Rows whose last token this plan samples."""
        self.gone: set[int] = set()
        """Rows that are off or ended since: their results are discarded."""
        self._names: frozenset[int] | None = None

    def names(self, row: int) -> bool:
        """Whether the plan computes or samples for `row`."""
        if self._names is None:
            self._names = frozenset(self.plan.rows.tolist() + self.plan.fork_rows.tolist())
        return row in self._names


class Book:
    """State shared by the parts of the scheduler. Methods keep the lists, rows and groups consistent."""

    def __init__(self, memory: Allocator, *, keep_log: bool, ranked: bool) -> None:
        self.memory = memory
        self.table = RowTable()
        self.groups: dict[RequestId, Group] = {}
        self.decoding: Index = NO_INDEX
        """Rows that compute one token a step, by rank."""
        self.prefilling: list[int] = []
        """Rows with known tokens to compute, by rank."""
        self.finishing: set[int] = set()
        """Running rows whose last token is promised by an open plan."""
        self.off: list[tuple[int, RequestId]] = []
        """(rank, request) of groups that can resume."""
        self.num_off = 0
        """Groups that are leaving, preempted, moving out or swapped."""
        self.seats = 0
        """Sequences of groups that run or move in, those still forming included."""
        self.open: deque[OpenPlan] = deque()
        self.next_step = 0
        self.log: list[records.Record] = []
        self.keeps_log = keep_log
        """Whether `record` keeps anything: who makes a record asks first where that is work."""
        self._ranked = ranked
        self.shared_tails: set[int] = set()
        """Rows whose last block may be shared with a sibling: the next write looks."""
        self.dependent: set[int] = set()
        """Rows whose next step depends on the results of the last: in one open plan at most."""
        self.moves: list[tuple[int, int, int]] = []
        """(request, row, parent) of accepted results, for the next plan to carry."""
        self.membership = 0
        """Changes whenever `decoding` does."""

    # -- looking -----------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        """Sequences that run."""
        return len(self.decoding) + len(self.prefilling) + len(self.finishing)

    def running(self) -> Index:
        """Running rows by rank, sequences of one request in their order."""
        rows = np.concatenate(
            [self.decoding, np.array([*self.prefilling, *sorted(self.finishing)], np.intp)]
        )
        return rows[np.lexsort((self.table.index[rows], self.table.rank[rows]))]

    def computed(self) -> I32:
        """Positions of each row that commits have reported computed."""
        computed = self.table.scheduled.copy()
        for entry in reversed(self.open):
            plan = entry.plan
            computed[plan.rows] = plan.starts
            if len(plan.fork_rows):
                computed[plan.fork_rows] = plan.starts[plan.fork_from]
        return computed

    def computed_of(self, row: int) -> int:
        """`computed` of one row."""
        for entry in self.open:
            if entry.names(row):
                plan = entry.plan
                at = np.flatnonzero(plan.rows == row)
                if len(at):
                    return int(plan.starts[at[0]])
                return int(plan.starts[plan.fork_from[np.flatnonzero(plan.fork_rows == row)[0]]])
        return int(self.table.scheduled[row])

    def findable(self) -> I32:
        """Positions of each row whose states others may find: what is computed, of rows that run."""
        computed = self.computed()
        computed[self.table.state != State.RUNNING] = 0
        return computed

    def known(self, rows: Index, computed: I32) -> I32:
        """Tokens that each of `rows` knows, given what is computed of each row of the table."""
        table, done = self.table, computed[rows]
        return np.where(
            (done >= table.known[rows]) & (table.state[rows] == State.RUNNING),
            done + 1,
            table.known[rows],
        )

    def named(self, row: int) -> bool:
        """Whether an open plan names `row`."""
        return any(entry.names(row) for entry in self.open)

    def record(self, record: records.Record) -> None:
        """Adds to the decision log."""
        if self.keeps_log:
            self.log.append(record)

    def record_evictions(self) -> None:
        """Adds what memory evicted for the decision that is recorded next."""
        if self.memory.evicted:
            evicted = self.memory.take_evicted()
            if self.keeps_log:
                self.record(records.Evicted(self.next_step, evicted))

    # -- running -----------------------------------------------------------------------------------------------

    def rank_of(self, waiting: Waiting) -> int:
        """Order of running."""
        return waiting.rank if self._ranked else waiting.arrival

    def run(self, row: int) -> None:
        """`row`, which has its frames, computes its known tokens from now on."""
        self.table.state[row] = State.RUNNING
        insort(self.prefilling, row, key=self._order)

    def resume(self, row: int, *, moved_in: bool) -> None:
        """`row`, which has its frames again, goes on.

        A hypothesis leaves its last known token to a step of all of its beam. A row that moved in complete decodes, since
        it may share its last block with a sibling still: a decode copies it before it writes. Not so a lone row whose prompt
        lacks its last position yet: that is a prompt chunk, and charged as one.
        """
        table = self.table
        group = self.groups[RequestId(int(table.request[row]))]
        formed = not any(table.state[other] == State.FORMING for other in group.rows)
        complete = moved_in and table.scheduled[row] == table.known[row] - 1
        complete &= len(group.rows) > 1 or table.known[row] > table.prompt[row]
        table.target[row] = table.known[row] - (formed and (group.request.beam or complete))
        if table.scheduled[row] >= table.target[row]:
            self.start_decoding(row)
        else:
            self.run(row)

    def held_back(self) -> list[int]:
        """Hypotheses that cannot decode now: results of one of their beam are due, or its tokens are not computed yet."""
        table = self.table
        requests = {int(table.request[row]) for row in self.dependent}
        held: list[int] = []
        for request in sorted(requests):
            rows = self.groups[RequestId(request)].rows
            if any(r not in self.dependent or r in self.finishing or self.named(r) for r in rows):
                held.extend(rows)
        return held

    def start_decoding(self, row: int) -> bool:
        """`row`, whose known tokens are computed or planned, decodes; False where only its last token is awaited."""
        table = self.table
        table.state[row] = State.RUNNING
        if self.groups[RequestId(int(table.request[row]))].request.beam:
            self.dependent.add(row)
        if max(table.scheduled[row] + 1, table.known[row]) >= table.limit[row]:
            self.finishing.add(row)
            return False
        self.decoding = insert_by_rank(table, self.decoding, row)
        self.membership += 1
        return True

    def finish_decoding(self, rows: I32, others: Index) -> None:
        """The last token of each of `rows` is planned; `others` decode on, by rank."""
        self.finishing.update(rows.tolist())
        self.decoding = others
        self.membership += 1

    def form_siblings(self, row: int) -> list[int]:
        """The other sequences of the request of `row`, whose prompt is planned, come into being; their rows."""
        table = self.table
        group = self.groups[RequestId(int(table.request[row]))]
        if len(group.rows) == 1:
            return []
        children = [other for other in group.rows if table.state[other] == State.FORMING]
        known = int(table.known[row])
        for child in children:
            self.memory.fork(row, child, known)
            table.scheduled[child] = known
            table.paid[child] = table.prompt[child]
        if children:
            self.shared_tails.update([row, *children])
            self.record(records.Forked(self.next_step, row, tuple(children)))
        return children

    def move(self, step: int, rows: list[int], parents: list[int]) -> None:
        """Beam search: each of `rows` goes on with the history of its parent."""
        self.memory.move(rows, parents)
        request = int(self.table.request[rows[0]])
        self.moves.extend((request, row, parent) for row, parent in zip(rows, parents, strict=True))
        self.shared_tails.update(rows, parents)
        self.record(records.Reparented(step, tuple(rows), tuple(parents)))

    def take_moves(self) -> tuple[I32, I32]:
        """(rows, parents) to carry in a plan, without those of requests that ended since."""
        moves, self.moves = self.moves, []
        kept = [(row, p) for request, row, p in moves if self.table.request[row] == request]
        rows, parents = np.array(kept, np.int32).reshape(-1, 2).T.copy()
        return rows, parents

    def stop_running(self, row: int) -> None:
        """`row` is on no running list any more; results of open plans that name it are discarded."""
        if row in self.finishing:
            self.finishing.remove(row)
        elif row in self.prefilling:
            self.prefilling.remove(row)
        else:
            self.decoding = self.decoding[self.decoding != row]
            self.membership += 1
        self.shared_tails.discard(row)
        self.dependent.discard(row)
        for entry in self.open:
            if entry.names(row):
                entry.gone.add(row)

    def _order(self, row: int) -> tuple[int, int]:
        return int(self.table.rank[row]), int(self.table.index[row])

    # -- ending ------------------------------------------------------------------------------------------------

    def end_sequence(self, step: int, row: int, reason: Finish) -> bool:
        """Ends the running sequence of `row`; whether that closed its request."""
        request_id = RequestId(int(self.table.request[row]))
        group = self.groups[request_id]
        if self.keeps_log:
            self.record(records.Ended(step, request_id, int(self.table.index[row]), reason))
        self.retire(step, row)
        group.rows.remove(row)
        self.seats -= 1
        if group.rows and any(self.table.state[other] != State.FORMING for other in group.rows):
            return False
        self.seats -= len(group.rows)
        for other in group.rows:
            self.table.free(other)
        group.status = Status.ENDED
        del self.groups[request_id]
        return True

    def retire(self, step: int, row: int) -> None:
        """The sequence of running `row` is over: frames come back now, or with the last open plan that names it.

        What commits have reported computed can be found from now on in either case.
        """
        table, named = self.table, self.named(row)
        done = self.computed_of(row) if named else int(table.scheduled[row])
        if done >= table.known[row]:
            table.known[row] = done + 1
        self.stop_running(row)
        table.state[row] = State.ENDED
        if not named:
            self.give_back(step, row)
        elif self.memory.shares_content:
            self.memory.publish(row, min(done, int(table.known[row])))

    def give_back(self, step: int, row: int) -> None:
        """Publishes what `row`, which no open plan names, has computed; takes its frames; an ended row is free then."""
        table, memory = self.table, self.memory
        held = memory.held_by(row)
        if held:
            if memory.shares_content:
                memory.publish(row, min(int(table.scheduled[row]), int(table.known[row])))
            memory.release(row)
            if self.keeps_log:
                self.record(records.Released(step, row, held))
        if table.state[row] == State.ENDED:
            memory.close(row)
            table.free(row)
        else:
            table.scheduled[row] = 0
