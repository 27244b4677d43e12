"""Desk: the one way in which a driver, live or simulated, works the core. Decides when to ask for another plan.

Numbers every call, stamps its time, and hands its record with the decisions made in it to a recorder. Knows no clock but
the one it is given, no model, no clients and no files.

Inputs (a submission, an abort, an expiry, the end of a transfer) reach the core at the moment they are made. A boundary is a
moment at which plans may be opened: after each commit, and whenever the driver calls `plan`, which it does when an input came in
while `can_plan`. All calls of one boundary carry the same time, and transfers start only at boundaries.

Invariant: stamps rise strictly from one input or boundary to the next, even where the clock stands still or jumps back,
so that the order of all calls can be told from their times alone.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from engine.core import journal
from engine.core.aliases import Aliases
from engine.core.book import Status
from engine.core.frames import FrameMap
from engine.core.ids import RequestId, TimeNs
from engine.core.journal import Call
from engine.core.log import Record
from engine.core.plan import (
    MemoryReport,
    Outcome,
    Plan,
    Rejected,
    Request,
    Results,
    StepFailed,
    Transfer,
)
from engine.core.scheduler import Scheduler


class CallRecorder(Protocol):
    """Where calls go. Must neither raise nor block: driving goes on whatever becomes of the recording."""

    @property
    def aliases(self) -> Aliases:
        """Under what names content appears in the calls."""
        ...

    def call(self, call: Call, decisions: list[Record]) -> None:
        """Takes in one call and what the core decided in it; the list is the recorder's from now on."""
        ...


Watcher = Callable[[list[Record]], None]
"""Is told the decisions of each call, just after it. Must neither raise nor block, nor change the list."""


class Counters(Struct, frozen=True):
    """What happened so far, each number only ever rising."""

    preemptions: int
    swaps: int
    """Of the preemptions, those by swap."""
    prefix_queries_tokens: int
    """Prompt tokens of admitted requests."""
    prefix_hits_tokens: int
    """Of these, the ones that were cached."""


class Desk:
    """A `Scheduler`, its open plans and its transfers in flight.

    A call that raises is not recorded: what the core raises is a defect, and ends the drive.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], int],
        recorder: CallRecorder | None = None,
    ) -> None:
        self.num_calls = 0
        self._scheduler = scheduler
        self._clock = clock
        self._recorder = recorder
        self._last = -1
        self._open: deque[Plan] = deque()
        self._max_open = scheduler.config.scheduler.max_open_plans
        self._moving: dict[int, Transfer] = {}
        self._started: list[Transfer] = []
        self._watcher: Watcher | None = None

    @property
    def open_plans(self) -> tuple[Plan, ...]:
        """Plans that wait for their results, oldest first."""
        return tuple(self._open)

    @property
    def can_plan(self) -> bool:
        """Whether another plan may be opened."""
        return len(self._open) < self._max_open

    @property
    def moving(self) -> tuple[int, ...]:
        """Transfers in flight, oldest first."""
        return tuple(self._moving)

    @property
    def counters(self) -> Counters:
        """What happened so far."""
        core = self._scheduler
        return Counters(
            core.num_preemptions,
            core.num_swaps,
            core.prefix_queries_tokens,
            core.prefix_hits_tokens,
        )

    def memory(self) -> MemoryReport:
        """The pool and the queues now."""
        return self._scheduler.memory()

    def frames(self) -> FrameMap:
        """What lies in each frame now."""
        return self._scheduler.frames()

    def statuses(self) -> dict[RequestId, Status]:
        """Where each request that has been admitted stands."""
        return self._scheduler.statuses()

    def watch(self, watcher: Watcher | None) -> None:
        """Tells `watcher` all decisions from now on, in place of whom it told before."""
        self._watcher = watcher
        self._scheduler.keep_log(keep=watcher is not None or self._recorder is not None)

    def next_timer(self) -> TimeNs | None:
        """When the driver should call `expire` though nothing else happens."""
        return self._scheduler.next_timer()

    def check(self) -> None:
        """Raises `InvariantError` where the core breaks a stated invariant. O(frames + rows)."""
        self._scheduler.check_invariants()

    # -- inputs ------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Rejected | None:
        """Hands `request` to the core; the reason where it can never run."""
        now = self._stamp()
        answer = self._scheduler.submit(request, now)
        if (to := self._recorder) is not None:
            self._write(to, journal.submitted(self.num_calls, now, request, answer, to.aliases))
        self._tell()
        return answer

    def abort(self, request: RequestId) -> bool:
        """Ends `request` in any state; True where this call did it."""
        now = self._stamp()
        ended = self._scheduler.abort(request, now)
        if (to := self._recorder) is not None:
            self._write(to, journal.aborted(self.num_calls, now, request, ended, to.aliases))
        self._tell()
        return ended

    def expire(self) -> tuple[RequestId, ...]:
        """Ends what is past its deadline, and lets who waits grow older; for when `next_timer` has come."""
        now = self._stamp()
        ended = self._scheduler.expire(now)
        if (to := self._recorder) is not None:
            self._write(to, journal.expired(self.num_calls, now, ended, to.aliases))
        self._tell()
        return ended

    def transfer_done(self, number: int, started: int, ended: int, *, ok: bool) -> None:
        """Transfer `number`, which ran from `started` to `ended`, is over.

        Raises:
            ValueError: it is not in flight.
        """
        now = self._stamp()
        self._scheduler.transfer_done(number, ok, now)
        transfer = self._moving.pop(number)
        if self._recorder is not None:
            record = journal.transferred(self.num_calls, now, transfer, ok, started, ended)
            self._write(self._recorder, record)
        self._tell()

    # -- boundaries --------------------------------------------------------------------------------------------

    def plan(self) -> list[Plan]:
        """A boundary without results: opens as many plans as the core has and the limit allows."""
        return self._plan(self._stamp())

    def commit(
        self, results: Results | StepFailed, started: int, ended: int
    ) -> tuple[Outcome, list[Plan]]:
        """A boundary with results: commits the oldest open plan, which ran from `started` to `ended`, then plans."""
        now = self._stamp()
        plan = self._open[0]
        outcome = self._scheduler.commit(plan, results, now)
        self._open.popleft()
        if (to := self._recorder) is not None:
            record = journal.committed(
                self.num_calls, now, plan, results, outcome, started, ended, to.aliases
            )
            self._write(to, record)
        self._tell()
        return outcome, self._plan(now)

    def take_transfers(self) -> list[Transfer]:
        """Transfers to start now; ask after every boundary."""
        started, self._started = self._started, []
        return started

    def _plan(self, now: TimeNs) -> list[Plan]:
        plans: list[Plan] = []
        while self.can_plan:
            answer = self._scheduler.schedule(now)
            if (to := self._recorder) is not None:
                self._write(to, journal.scheduled(self.num_calls, now, answer, to.aliases))
            self._tell()
            if not isinstance(answer, Plan):
                break
            self._open.append(answer)
            plans.append(answer)
        for transfer in self._scheduler.take_transfers():
            self._moving[transfer.id] = transfer
            self._started.append(transfer)
        return plans

    def _stamp(self) -> TimeNs:
        self._last = max(self._clock(), self._last + 1)
        return TimeNs(self._last)

    def _write(self, recorder: CallRecorder, call: Call) -> None:
        log = self._scheduler.take_log()
        recorder.call(call, log)
        if log and self._watcher is not None:
            self._watcher(log)

    def _tell(self) -> None:
        """Ends a call: tells the watcher what no recorder took."""
        self.num_calls += 1
        if self._watcher is not None and self._recorder is None:
            log = self._scheduler.take_log()
            if log:
                self._watcher(log)
