"""The scheduler: which rows compute what in the next step, who gets frames, and who gives way. A pager without a clock.

Knows requests, rows and memory through `Allocator`; knows no tokens' meaning, no text, no device, no time of its own.

Order of one step: every running decode, oldest of the highest class first, then prompt chunks of running rows, then work
that was preempted, then new requests by the policy, all inside the token budget. A row is named by at most two open
plans; what ends or is preempted while a plan names it keeps its frames until the last such plan commits, and its later
results are discarded.

Progress: the oldest of the highest class is never a victim, and a request whose tokens cannot fit in the empty pool is
rejected at submission, so the oldest always finishes.
"""

import heapq

from engine.core import leap
from engine.core import log as records
from engine.core.admission import Admission
from engine.core.allocator import Allocator
from engine.core.book import Book, Status
from engine.core.checks import check_book
from engine.core.commits import Commits
from engine.core.config import CoreConfig
from engine.core.errors import InvariantError
from engine.core.frames import FrameMap
from engine.core.ids import RequestId, TimeNs
from engine.core.limits import check_request, limit_of
from engine.core.memory import BlockManager
from engine.core.plan import (
    Blocked,
    Finish,
    Idle,
    MemoryReport,
    Outcome,
    Plan,
    Rejected,
    Request,
    Results,
    StepFailed,
    Transfer,
)
from engine.core.planner import Planner
from engine.core.policy import Shares
from engine.core.pressure import Pressure
from engine.core.queue import Waiting, WaitingQueue
from engine.core.rows import State


class Scheduler:
    """The contract: `submit`, `abort`, `expire`, `schedule`, `commit`, `forecast`, `advance`, `transfer_done`, `memory`.

    Every method checks first and then changes: on any exception but `InvariantError` the state is as it was.
    """

    def __init__(self, config: CoreConfig, memory: Allocator | None = None) -> None:
        limits = config.scheduler
        self.config = config
        self.allocator: Allocator = memory or BlockManager(config.memory)
        self._book = Book(self.allocator, keep_log=limits.log, ranked=limits.policy != "fcfs")
        self._pressure = Pressure(self._book, limits)
        shares = Shares(limits.prompt_weight, limits.output_weight)
        self._queue = WaitingQueue(limits, shares)
        charged = shares if limits.policy == "fair" else None
        self._charged = charged
        self._admission = Admission(config, self._book, self._queue, self._pressure, charged)
        self._planner = Planner(limits, self._book, self._pressure, self._admission, charged)
        self._commits = Commits(self._book, self._pressure, charged)
        self._deadlines: list[tuple[int, RequestId]] = []
        self._next_arrival = 0
        self._now = TimeNs(0)

    @property
    def prefix_queries_tokens(self) -> int:
        """Prompt tokens of admitted requests that have content, counted once a request."""
        return self._admission.prefix_queries_tokens

    @property
    def prefix_hits_tokens(self) -> int:
        """Of these, the ones that were cached."""
        return self._admission.prefix_hits_tokens

    @property
    def log(self) -> list[records.Record]:
        """The decision log since the last `take_log`."""
        return self._book.log

    def take_log(self) -> list[records.Record]:
        """The decision log since the last take; the list is the caller's."""
        log, self._book.log = self._book.log, []
        return log

    @property
    def num_preemptions(self) -> int:
        """Groups that were preempted and have left."""
        return self._pressure.num_recompute + self._pressure.num_swap

    @property
    def num_swaps(self) -> int:
        """Of the preemptions, those by swap."""
        return self._pressure.num_swap

    @property
    def num_running(self) -> int:
        """Sequences that run. O(1)."""
        return self._book.num_running

    @property
    def num_off(self) -> int:
        """Requests that were preempted or swapped out and are not back. O(1)."""
        return self._book.num_off

    @property
    def num_waiting(self) -> int:
        """Requests that wait, those that are off included. O(1)."""
        return len(self._queue) + self._book.num_off

    # -- requests ----------------------------------------------------------------------------------------------

    def submit(self, request: Request, now: TimeNs) -> Rejected | None:
        """Queues `request`, or says why it can never run; a rejected request leaves no trace.

        Raises:
            ValueError: the id is in use, the request contradicts itself, or time went backwards.
        """
        if request.id in self._book.groups or request.id in self._queue:
            raise ValueError(f"request {request.id} is already here")
        check_request(request)
        self._tick(now)
        limit = limit_of(request, self.config, self.allocator)
        if isinstance(limit, Rejected):
            return limit
        self._queue.push(Waiting(request, self._next_arrival, now, limit))
        self._next_arrival += 1
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.id))
        return None

    def abort(self, request_id: RequestId, now: TimeNs) -> bool:
        """Ends the request in whatever state it is; True where this call ended it, False where it was over or unknown."""
        self._tick(now)
        return self._end_request(request_id, Finish.ABORTED)

    def expire(self, now: TimeNs) -> tuple[RequestId, ...]:
        """Ends the requests whose deadline has passed; these, in order of deadline."""
        self._tick(now)
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heapq.heappop(self._deadlines)
            if self._end_request(request_id, Finish.DEADLINE):
                expired.append(request_id)
        return tuple(expired)

    def next_timer(self) -> TimeNs | None:
        """When `expire` and `schedule` may have something to do though nothing else happens."""
        while self._deadlines and not self._is_here(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        times = [TimeNs(self._deadlines[0][0])] if self._deadlines else []
        rise = self._queue.next_rise(self._now)
        return min([*times, rise]) if rise is not None else (times[0] if times else None)

    def _is_here(self, request_id: RequestId) -> bool:
        return request_id in self._queue or request_id in self._book.groups

    def _end_request(self, request_id: RequestId, reason: Finish) -> bool:
        book, table = self._book, self._book.table
        if request_id in self._queue:
            self._queue.remove(request_id)
            book.record(records.Ended(book.next_step, request_id, -1, reason))
            return True
        group = book.groups.pop(request_id, None)
        if group is None:
            return False
        book.record(records.Ended(book.next_step, request_id, -1, reason))
        if group.status in (Status.RUNNING, Status.MOVING_IN):
            book.seats -= len(group.rows)
        self._pressure.drop(group)
        for row in group.rows:
            if table.state[row] == State.RUNNING:
                book.retire(book.next_step, row)
            elif table.state[row] == State.FORMING:
                self.allocator.close(row)
                table.free(row)
            else:
                table.state[row] = State.ENDED
                if group.status is Status.MOVING_IN:
                    self.allocator.silence(row)
                if not book.named(row):
                    book.give_back(book.next_step, row)
        group.rows = []
        group.status = Status.ENDED
        return True

    # -- steps -------------------------------------------------------------------------------------------------

    def schedule(self, now: TimeNs) -> Plan | Idle | Blocked:
        """The next step. `Blocked` where a commit or a transfer must come first, `Idle` where nothing is left."""
        self._tick(now)
        book = self._book
        if len(book.open) >= self.config.scheduler.max_open_plans:
            return Blocked()
        plan = self._planner.plan(now)
        if plan is not None:
            return plan
        if book.open or self._pressure.num_transfers:
            return Blocked()
        if self._queue or book.groups:
            raise InvariantError("there is work, no plan is open, and nothing can run")
        return Idle()

    def _nobody_comes_in(self, plan: Plan) -> bool:
        """Whether no step like `plan` could let in anyone who waits now."""
        if not self._book.prefilling:
            return self._admission.is_quiet(self._now)
        limits = self.config.scheduler
        return limits.policy != "fair" and leap.fills(plan, limits.token_budget)

    def forecast(self, plan: Plan, most: int, *, beyond_ends: bool = True) -> leap.Forecast | None:
        """What this would do from `plan` on, the only open one, if nothing came from outside: up to `most` steps. Changes nothing.

        None where there is nothing to foresee: a step that is not only growth and ends may follow, or `plan` is the last. `beyond_ends`:
        sequences may end on the way. O(rows).
        """
        limits = self.config.scheduler
        if self._pressure.num_transfers:
            return None
        if self._queue or self._book.num_off:
            beyond_ends = False
            if not self._nobody_comes_in(plan):
                return None
        return leap.forecast(
            self._book, plan, limits.token_budget, beyond_ends=beyond_ends, most=most
        )

    def advance(
        self, foreseen: leap.Forecast, done: int, planned: int, now: TimeNs
    ) -> leap.Advanced:
        """Commits the first `done` steps of a forecast and opens those up to `planned`, as single steps would have done by now.

        Since the forecast nothing but submissions may have come. Each step was planned when the one before it began, or
        ended where one plan is open at a time.

        Raises:
            ValueError: the forecast does not hold any more, there are no such steps, or time went backwards.
        """
        book, most_open = self._book, self.config.scheduler.max_open_plans
        if (
            len(book.open) != 1
            or book.open[0].plan is not foreseen.plan
            or book.decoding is not foreseen.rows
        ):
            raise ValueError("the forecast does not hold any more")
        if not max(1, done + most_open - 1) <= planned <= min(done + most_open, foreseen.steps):
            raise ValueError(
                f"{planned} of {foreseen.steps} steps cannot be planned with {done} done"
            )
        self._tick(now)
        return leap.advance(
            book, self._planner, self._charged, foreseen, done, planned, most_open - 1
        )

    def commit(self, plan: Plan, results: Results | StepFailed, now: TimeNs) -> Outcome:
        """Takes in what the oldest open plan computed.

        Raises:
            ValueError: `plan` is not the oldest open plan, `results` are not for its sampling rows, or time went backwards.
        """
        self._commits.check(plan, results)
        self._tick(now)
        return self._commits.commit(plan, results)

    # -- transfers ---------------------------------------------------------------------------------------------

    def take_transfers(self) -> list[Transfer]:
        """Transfers to start now; ask after every `schedule` and `commit`."""
        return self._pressure.take_transfers()

    def transfer_done(self, number: int, ok: bool, now: TimeNs) -> None:
        """Transfer `number` is over; where it failed its request is computed again.

        Raises:
            ValueError: no such transfer is in flight, or time went backwards.
        """
        if not self._pressure.in_flight(number):
            raise ValueError(f"transfer {number} is not in flight")
        self._tick(now)
        self._pressure.transfer_done(number, ok=ok)

    # -- looking -----------------------------------------------------------------------------------------------

    def memory(self) -> MemoryReport:
        """The pool and the queues at this moment. O(rows + entries)."""
        book = self._book
        swapped = sum(
            group.status in (Status.MOVING_OUT, Status.SWAPPED) for group in book.groups.values()
        )
        return self.allocator.report(
            book.computed(), book.num_running, len(self._queue) + book.num_off, swapped
        )

    def frames(self) -> FrameMap:
        """What lies in each frame of paged memory at this moment. O(rows + entries).

        Raises:
            TypeError: memory is not paged.
        """
        if not isinstance(self.allocator, BlockManager):
            raise TypeError("only paged memory has frames")
        table = self._book.table
        return self.allocator.frames(table.request, table.index)

    def statuses(self) -> dict[RequestId, Status]:
        """Where each request that has been admitted stands; the others that are here wait. O(requests)."""
        return {request: group.status for request, group in self._book.groups.items()}

    def keep_log(self, *, keep: bool) -> None:
        """Whether decisions are logged from now on; what they are does not depend on it."""
        self._book.keeps_log = keep

    def check_invariants(self) -> None:
        """Raises `InvariantError` where memory, rows or groups break a stated invariant. O(frames + rows)."""
        check_book(self._book, self._pressure.num_transfers)

    def _tick(self, now: TimeNs) -> None:
        if now < self._now:
            raise ValueError(f"time went backwards, from {self._now} to {now} ns")
        self._now = now
