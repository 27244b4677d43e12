"""Replica: one engine in simulated time. SimPy carries its step completions, the core decides, a cost model says how long steps take.

The scheduler is the one that serves live; nothing of its policy is repeated here. The order of calls is the live loop's: a boundary, at
which plans are opened up to the limit, follows each step that ends, after its commit, and each input for which a plan could be opened
at once. Plans run one at a time in the order they were made. Arrivals at the instant of a step's end come before it.

Quiet time is leapt over. When a plan starts from which the core foresees what it will do, these steps are priced in one call, and one event
stands for all of them; the scheduler is told nothing yet. An arrival in between cuts the leap where single steps would have made the next plan
that could be another one, and there the scheduler advances to it. The result is that of single steps in every figure.

Does not know formats of traces, percentiles or output, nor where requests come from.
"""

from array import array
from collections import deque
from collections.abc import Callable, Generator
from typing import Final

import numpy as np
import simpy

from engine.core.arrays import I32
from engine.core.errors import InvariantError
from engine.core.frames import FrameMap
from engine.core.leap import Advanced, Forecast
from engine.core.plan import Finish, Plan, Rejected, Request, Results, Transfer
from engine.core.scheduler import Scheduler
from sim.beams import Beams
from sim.clock import Clock, Soon
from sim.cost import CostModel, StepWork, work_of
from sim.leap import Leap, Levels
from sim.ledger import Ledger
from sim.link import Link
from sim.occupancy import IDLE, Level, Occupancy
from sim.timeline import Timeline

FEWEST_STEPS: Final = 256
MOST_STEPS: Final = 512
"""Of one leap: more are another leap."""
WORTHWHILE_STEPS: Final = 4
"""A shorter forecast takes longer than its single steps."""
_FIRST_RANK: Final = 2
_ROWS_AT_FIRST: Final = 1024


class Replica:
    """A scheduler, a cost model, and the records of what happened."""

    def __init__(
        self,
        clock: Clock,
        scheduler: Scheduler,
        cost: CostModel,
        ledger: Ledger,
        *,
        link: Link | None = None,
        block_bytes: int = 0,
        number: int = 0,
        leaps: bool = True,
        beams: Beams | None = None,
    ) -> None:
        """Starts idle. `number` orders what happens to several replicas at one instant; blocks move over `link`; `beams` chooses among
        hypotheses.
        """
        self.scheduler = scheduler
        self.timeline = Timeline(len(IDLE))
        """Integrals of the fields of `Level`."""
        self.num_steps = 0
        self.num_plans = 0
        """Steps, where a leap counts as one."""
        self.num_step_tokens = 0
        """Positions computed, recomputation included."""
        self.num_output_tokens = 0
        self.max_batch = 0
        self.max_held_blocks = 0
        self.peak_ns = 0
        """When so many were first held."""
        self.preempted_ns = array("q")
        """When work was preempted, once for each time."""
        self.on_end: list[Callable[[int], None]] = []
        """Told the number of each request that ends, after it is in the ledger; where ends were leapt over, some time later."""
        self.may_pass_ends: Callable[[], bool] = lambda: True
        """Whether nothing follows from an end but what this replica does."""
        self._clock = clock
        self._cost = cost
        self.ledger = ledger
        self._link = link
        self._block_bytes = block_bytes
        self._leaps = leaps
        self._beams = beams
        self._occupancy = Occupancy(scheduler)
        self._max_open = scheduler.config.scheduler.max_open_plans
        self._rank = _FIRST_RANK + 2 * number
        self._open: deque[Plan] = deque()
        """Plans that wait for their results, oldest first; the oldest one runs."""
        self._work: StepWork | None = None
        """Of the running plan."""
        self._due: simpy.Event | None = None
        """What happens next to the running plan."""
        self._leap: Leap | None = None
        """What the running plan is the first step of: until it is over, or cut, the scheduler is told nothing."""
        self._wide: set[int] = set()
        """Open requests of several sequences."""
        self._horizon = FEWEST_STEPS
        """Steps to foresee next time."""
        self._boundary_due = False
        self._level = IDLE
        self._zeros: I32 = np.zeros(_ROWS_AT_FIRST, np.int32)
        """The twin has no tokens."""
        self._no_stops = np.zeros(_ROWS_AT_FIRST, np.int8)

    def submit(self, request: Request) -> Rejected | None:
        """A request arrives now."""
        now = self._clock.now
        answer = self.scheduler.submit(request, now)
        if answer is not None:
            return answer
        if request.num_sequences > 1:
            self._wide.add(request.id)
            self._occupancy.forking += 1
        if self._leap is not None:
            self._leap.arrivals.append(now)
            self._shorten(self._leap)
            return None
        self._one_more_waits(now)
        self._wake()
        return None

    def load(self) -> int:
        """Sequences that run and requests that wait, now."""
        scheduler, leap = self.scheduler, self._leap
        here = scheduler.num_running + scheduler.num_waiting
        return here - leap.ended(self._done(leap)) if leap is not None else here

    def look(self, at_ns: int, tell: Callable[[FrameMap], None]) -> None:
        """Tells what lies in each frame at `at_ns`, a time to come, after all that happens to this replica then."""

        def callback(_: simpy.Event) -> None:
            self.settle()
            tell(self.scheduler.frames())

        Soon(self._clock, at_ns - self._clock.now, self._rank + 1).callbacks.append(callback)

    def close(self) -> None:
        """Takes the figures up to now, for a run that was cut off in mid-step."""
        self.settle()
        self.timeline.add(self._clock.now, self._level)

    def _one_more_waits(self, now: int) -> None:
        self.timeline.add(now, self._level)
        held, cached, used, running, waiting, busy = self._level
        self._level = Level(held, cached, used, running, waiting + 1, busy)

    # -- boundaries --------------------------------------------------------------------------------------------

    def _has_room_for_a_plan(self) -> bool:
        """Whether a plan could be opened now: in mid-leap as many are open, of single steps, as can be."""
        return self._leap is None and len(self._open) < self._max_open

    def _wake(self) -> None:
        """An input came: a plan may have become possible."""
        if not self._boundary_due and self._has_room_for_a_plan():
            self._boundary_due = True
            Soon(self._clock, 0, self._rank + 1).callbacks.append(self._input_boundary)

    def _input_boundary(self, _: simpy.Event) -> None:
        self._boundary_due = False
        if self._has_room_for_a_plan():
            self._plan()

    def _plan(self) -> None:
        """Opens as many plans as the core has and the limit allows, and starts the oldest if none runs."""
        scheduler, plans = self.scheduler, self._open
        if not plans and not self._schedule():
            self._observe()
            return
        if self._work is None:
            self._work = work = work_of(plans[0])
            if self._leaps and len(plans) == 1:
                passes_ends = not self._occupancy.forking and self.may_pass_ends()
                ahead = scheduler.forecast(plans[0], self._horizon, beyond_ends=passes_ends)
                if ahead is not None and ahead.steps >= WORTHWHILE_STEPS:
                    self._observe()
                    self._begin(ahead, work)
                    return
            self._come_back(self._cost.step_ns(work), self._step_done)
        while len(plans) < self._max_open and self._schedule():
            pass
        self._observe()

    def _schedule(self) -> bool:
        answer = self.scheduler.schedule(self._clock.now)
        if not isinstance(answer, Plan):
            return False
        self._open.append(answer)
        self._occupancy.opened(answer)
        for request, index, _ in answer.admitted:
            if index == 0:
                self.ledger.admit(request, self._clock.now)
        return True

    def _come_back(self, delay: int, callback: Callable[[simpy.Event], None]) -> None:
        self._due = event = Soon(self._clock, delay, self._rank)
        event.callbacks.append(callback)

    def _observe(self) -> None:
        """After calls of the scheduler: starts the transfers that it asks for; from now on the series have their new values."""
        if self._link is not None:
            for transfer in self.scheduler.take_transfers():
                self._occupancy.moving += 1
                self._clock.process(self._move(self._link, transfer))
        now, scheduler = self._clock.now, self.scheduler
        self.timeline.add(now, self._level)
        self._level = level = self._occupancy.level(self._work is not None)
        if level.held_blocks > self.max_held_blocks:
            self.max_held_blocks = level.held_blocks
            self.peak_ns = now
        if scheduler.num_preemptions != len(self.preempted_ns):
            times = scheduler.num_preemptions - len(self.preempted_ns)
            self.preempted_ns.extend([now] * times)

    def _step_done(self, _: simpy.Event) -> None:
        self._commit(self._open.popleft())
        self._plan()

    def _move(self, link: Link, transfer: Transfer) -> Generator[simpy.Event, None, None]:
        yield from link.carry(len(transfer.frames) * self._block_bytes, out=transfer.out)
        yield Soon(self._clock, 0, self._rank)
        self._occupancy.moving -= 1
        self.scheduler.transfer_done(transfer.id, True, self._clock.now)
        self._observe()
        self._wake()

    # -- leaps -------------------------------------------------------------------------------------------------

    def _begin(self, ahead: Forecast, work: StepWork) -> None:
        """The running plan is alone and has a forecast: comes back when another plan than those foreseen is to be made."""
        self._leap = leap = Leap(ahead, work, self._cost, self._clock.now)
        self._come_back_from(leap)

    def _come_back_from(self, leap: Leap) -> None:
        """With two open plans, as the last step begins; with one, as it ends."""
        ends = leap.ends
        self._come_back(int(ends[leap.limit - self._max_open]) - self._clock.now, self._leap_over)

    def _done(self, leap: Leap) -> int:
        """Steps that are over."""
        now, ends = self._clock.now, leap.ends
        done = int(ends.searchsorted(now))
        return done + (int(ends[done]) == now and self._clock.has_passed(now, self._rank))

    def _shorten(self, leap: Leap) -> None:
        """An input came: the leap has the steps that are planned already, and no more."""
        limit = self._done(leap) + self._max_open
        if limit < leap.limit:
            leap.limit = limit
            assert self._due is not None
            self._due.callbacks = []
            self._come_back_from(leap)

    def _leap_over(self, event: simpy.Event) -> None:
        """What was foreseen is over, but for the last step where it is planned ahead."""
        leap = self._leap
        assert leap is not None
        limit = leap.limit
        # Steps beyond a cut are priced in vain, and each end of a horizon costs a plan.
        self._horizon = min(MOST_STEPS, max(4 * limit, FEWEST_STEPS))
        if self._max_open == 1:
            self._advance(leap, limit, limit, limit - 1)
            self._work = None
            self._plan()
            return
        self._advance(leap, limit - 1, limit, limit - 2)
        self._work = leap.work_of(limit)
        self._come_back(int(leap.ends[limit - 1]) - self._clock.now, self._step_done)
        self._schedule()
        self._observe()

    def settle(self) -> None:
        """Brings scheduler, figures and ledger to this moment, where a leap is under way."""
        leap = self._leap
        if leap is None:
            return
        assert self._due is not None
        self._due.callbacks = []
        done = self._done(leap)
        self._advance(leap, done, done + self._max_open, done)
        self._work = leap.work_of(done + 1)
        self._come_back(int(leap.ends[done]) - self._clock.now, self._step_done)

    def _advance(self, leap: Leap, done: int, planned: int, whole: int) -> None:
        """The core goes to where the first `done` steps are over; the series to the step after `whole` steps, and to the arrivals in it."""
        ledger, occupancy, ends = self.ledger, self._occupancy, leap.ends
        advanced = self.scheduler.advance(leap.ahead, done, planned, self._clock.now)
        self._leap = None
        old, self._open = self._open[0], deque(advanced.plans)
        occupancy.grew(len(advanced.grown))
        for plan in advanced.plans[not done :]:
            occupancy.opened(plan)
        freed = []
        closed: list[int] = []
        for ended in advanced.ended:
            lengths = [ledger.num_prompt[r] + ledger.num_output[r] - 1 for r in ended.requests]
            freed.append(occupancy.ended(lengths))
            closed.extend(ended.closed)
            now = int(ends[ended.step - 1])
            for request in ended.closed:
                self._close(request, now)
        self._draw(leap, advanced, freed, whole)
        if done:
            tokens, samples = leap.tokens(done)
            self.num_steps += done
            self.num_plans += 1
            self.num_step_tokens += tokens
            self.num_output_tokens += samples
            self.max_batch = max(self.max_batch, len(old.rows))
            occupancy.computed(tokens)
            if not leap.ahead.chunk and old.num_decodes < len(old.rows):
                first = old.requests[old.num_decodes :][old.samples[old.num_decodes :]]
                for request in first.tolist():
                    ledger.first_token(request, int(ends[0]))
        for request in closed:
            for tell in self.on_end:
                tell(request)

    def _draw(
        self, leap: Leap, advanced: Advanced, freed: list[tuple[int, int]], whole: int
    ) -> None:
        """The series up to the step after `whole` steps, and to the arrivals in it."""
        levels = Levels(
            leap,
            advanced,
            self._level,
            whole + 1,
            lead=self._max_open - 1,
            total=self.scheduler.allocator.total_blocks,
            freed=freed,
            block_size=self._occupancy.shared_block_size,
        )
        highest = int(levels.held.max())
        if highest > self.max_held_blocks:
            self.max_held_blocks = highest
            at = int(levels.held.argmax())
            self.peak_ns = int(leap.ends[at - 1]) if at else self.timeline.end_ns
        self.timeline.add_many(leap.ends[:whole], levels.first(whole))
        self._level = levels.last()
        for arrival in leap.arrivals:
            self._one_more_waits(arrival)

    # -- results -----------------------------------------------------------------------------------------------

    def _commit(self, plan: Plan) -> None:
        now, work = self._clock.now, self._work
        assert work is not None
        self._occupancy.computed(work.num_tokens)
        self.num_steps += 1
        self.num_plans += 1
        self.num_step_tokens += work.num_tokens
        self.max_batch = max(self.max_batch, work.num_sequences)
        self._work = None
        decodes = plan.num_decodes
        rows = plan.sampling
        size = len(rows)
        if size > len(self._zeros):
            self._zeros = np.zeros(2 * size, np.int32)
            self._no_stops = np.zeros(2 * size, np.int8)
        parents = self._beams.parents(plan, rows) if self._beams is not None else None
        results = Results(rows, self._zeros[:size], self._no_stops[:size], parents)
        outcome = self.scheduler.commit(plan, results, now)
        self.num_output_tokens += len(outcome.rows)
        if size > decodes:
            # Whoever decoded in this step had a token before; prompts that got their first are few.
            prefills = set(plan.requests[decodes:][plan.samples[decodes:]].tolist())
            for request in outcome.requests[decodes - size :].tolist():
                if request in prefills:
                    self.ledger.first_token(request, now)
        if len(outcome.ended_rows):
            self._end(outcome.ended_requests.tolist(), outcome.reasons.tolist(), outcome.closed)

    def _end(self, requests: list[int], reasons: list[int], closed: tuple[int, ...]) -> None:
        """Sequences ended with this commit, and with the last of a request the request."""
        now, ledger = self._clock.now, self.ledger
        for request, reason in zip(requests, reasons, strict=True):
            if reason != Finish.LENGTH:
                raise InvariantError(f"request {request} ended with {Finish(reason).name}")
        self._occupancy.ended([ledger.num_prompt[r] + ledger.num_output[r] - 1 for r in requests])
        for request in closed:
            self._close(request, now)
            for tell in self.on_end:
                tell(request)

    def _close(self, request: int, now: int) -> None:
        """The last sequence of a request ended at `now`."""
        if request in self._wide:
            self._wide.remove(request)
            self._occupancy.forking -= 1
        self.ledger.end(request, now, done=True)
