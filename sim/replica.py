"""Replica: one engine in simulated time. SimPy carries its step completions, the core decides, a cost model says how long steps take.

The scheduler is the one that serves live; nothing of its policy is repeated here. The order of calls is the live loop's: a boundary, at
which plans are opened up to the limit, follows each step that ends, after its commit, and each input for which a plan could be opened
at once. Plans run one at a time in the order they were made. Arrivals at the instant of a step's end come before it.

Quiet time is leapt over. When the plan that runs could be longer, its steps are priced ahead in one call, and one event stands for all of
them. An arrival in between cuts the leap: the plan is made longer by exactly the steps that single steps would have planned by then. The
result is that of single steps in every figure.

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
from engine.core.plan import Finish, Plan, Rejected, Request, Results, Transfer
from engine.core.scheduler import Scheduler
from sim.beams import Beams
from sim.clock import Clock, Soon
from sim.cost import CostModel, StepWork, repeated, work_of
from sim.ledger import Ledger
from sim.link import Link
from sim.occupancy import IDLE, Level, Occupancy
from sim.timeline import Ints, Timeline

MOST_STEPS: Final = 256
"""Of one leap: more are another leap."""
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
        """Told the number of each request that ends, after it is in the ledger."""
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
        """Of the running plan; of a leap, of its first step."""
        self._due: simpy.Event | None = None
        """What happens next to the running plan."""
        self._ends: Ints | None = None
        """The ends of the running plan's steps as priced ahead; until it is cut or over, the plan is not longer yet."""
        self._done = 0
        """Steps of the running leap that are in the figures."""
        self._last_end = 0
        """When the running leap ends, once that is known."""
        self._wide: set[int] = set()
        """Open requests of several sequences."""
        self._boundary_due = False
        self._level = IDLE
        self._zeros: I32 = np.zeros((MOST_STEPS, _ROWS_AT_FIRST), np.int32)
        """The twin has no tokens."""
        self._no_stops = np.zeros(_ROWS_AT_FIRST, np.int8)
        self._start_of: I32 = np.zeros(_ROWS_AT_FIRST, np.int32)

    def submit(self, request: Request) -> Rejected | None:
        """A request arrives now."""
        if self._ends is not None:
            self._cut()
        now = self._clock.now
        answer = self.scheduler.submit(request, now)
        if answer is not None:
            return answer
        if request.num_sequences > 1:
            self._wide.add(request.id)
            self._occupancy.forking += 1
        self.timeline.add(now, self._level)
        held, cached, used, running, waiting, busy = self._level
        self._level = Level(held, cached, used, running, waiting + 1, busy)
        self._wake()
        return None

    def look(self, at_ns: int, tell: Callable[[FrameMap], None]) -> None:
        """Tells what lies in each frame at `at_ns`, a time to come, after all that happens to this replica then."""

        def callback(_: simpy.Event) -> None:
            if self._ends is not None:
                self._cut()
            tell(self.scheduler.frames())

        Soon(self._clock, at_ns - self._clock.now, self._rank + 1).callbacks.append(callback)

    def close(self) -> None:
        """Takes the figures up to now, for a run that was cut off in mid-step."""
        if self._ends is not None:
            self._cut()
        if self._done:
            assert self._work is not None
            self._count(self._done)
            self.num_output_tokens += self._done * self._work.num_samples
        self.timeline.add(self._clock.now, self._level)

    # -- boundaries --------------------------------------------------------------------------------------------

    def _has_room_for_a_plan(self) -> bool:
        """Whether a plan could be opened now, of single steps: one of a leap that goes on stands for as many as can be open."""
        if not self._open or self._max_open == 1:
            return not self._open
        return len(self._open) == 1 and self._done == self._open[0].steps - 1

    def _wake(self) -> None:
        """An input came: a plan may have become possible."""
        if not self._boundary_due and self._has_room_for_a_plan():
            self._boundary_due = True
            Soon(self._clock, 0, self._rank + 1).callbacks.append(self._input_boundary)

    def _input_boundary(self, _: simpy.Event) -> None:
        self._boundary_due = False
        if self._ends is None and self._has_room_for_a_plan():
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
                steps = scheduler.most_steps(plans[0])
                if steps > 1:
                    self._observe()
                    self._price_ahead(work, min(steps, MOST_STEPS))
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

    def _price_ahead(self, work: StepWork, steps: int) -> None:
        """The running plan is alone and could have `steps` steps: comes back when, with all of them, the next is to be planned."""
        now = self._clock.now
        if not work.num_chunks:
            ends = self._cost.leap_ns(work, steps)
        else:
            ends = np.array([self._cost.step_ns(w) for w in repeated(work, steps)])
        self._ends = ends
        ends.cumsum(out=ends)
        ends += now
        if self._max_open == 1:
            self._come_back(int(ends[-1]) - now, self._leap_done)
        else:
            self._come_back(int(ends[-2]) - now, self._last_step)

    def _cut(self) -> None:
        """An input comes now: the running plan gets the steps that are planned already, and no more."""
        now, ends = self._clock.now, self._ends
        assert ends is not None
        assert self._due is not None
        self._due.callbacks = []
        done = int(ends.searchsorted(now))
        done += int(ends[done]) == now and self._clock.has_passed(now, self._rank)
        steps = done + self._max_open
        self._lengthen(ends[:steps], done)
        if self._max_open == 1:
            self._come_back(int(ends[done]) - now, self._step_done)
        else:
            self._come_back(int(ends[done]) - now, self._last_step)

    def _leap_done(self, event: simpy.Event) -> None:
        """With one open plan: the leap, which nothing cut, is over."""
        assert self._ends is not None
        self._lengthen(self._ends, len(self._ends) - 1)
        self._step_done(event)

    def _last_step(self, _: simpy.Event) -> None:
        """With two open plans: the last step of the leap begins, and the next plan is made."""
        now, plan = self._clock.now, self._open[0]
        if self._ends is not None:
            self._lengthen(self._ends, len(self._ends) - 1)
        elif self._done < plan.steps - 1:
            self._computed(plan.steps - 1 - self._done)
        self._come_back(self._last_end - now, self._step_done)
        self._schedule()
        self._observe()

    def _lengthen(self, ends: Ints, done: int) -> None:
        """Makes the running plan as long as `ends`, and takes the first `done` of its steps into the figures."""
        self._ends = None
        self._last_end = int(ends[-1])
        plan, steps = self._open[0], len(ends)
        began: I32 | None = None
        if steps > 1:
            before = len(plan.delta_rows)
            plan = self._open[0] = self.scheduler.extend(plan, steps)
            if plan.steps != steps:
                raise InvariantError(f"a leap of {steps} steps was cut to {plan.steps}")
            if len(plan.delta_rows) > before:
                began = self._steps_of(plan, before)
                self._occupancy.grew(len(began))
        grown = None
        if began is not None:
            ahead = np.arange(self._max_open - 1, self._max_open + done)
            grown = began.searchsorted(ahead, side="right")
        self._add_steps(ends[:done], grown)
        self._computed(done)

    def _steps_of(self, plan: Plan, first: int) -> I32:
        """Which step of the leap, from 0, begins each of the blocks that stand in `plan` from entry `first` on; ascending."""
        rows = plan.delta_rows[first:]
        named = plan.rows.astype(np.intp)
        largest = max(named.tolist())
        if largest >= len(self._start_of):
            self._start_of = np.zeros(2 * largest, np.int32)
        self._start_of[named] = plan.starts
        return plan.delta_cols[first:] * self.scheduler.allocator.block_size - self._start_of[rows]

    def _add_steps(self, ends: Ints, grown: Ints | None) -> None:
        """The series during steps that end at `ends`, [n], and from then on; `grown`, [n + 1]: blocks begun since the level was taken,
        None where none were.
        """
        assert self._work is not None
        held, cached, used, *others = self._level
        size, done = self._work.num_tokens, len(ends)
        during: Ints | int = held
        kept: Ints | int = cached
        if grown is not None:
            during = held + grown[:-1]
            begun = int(grown[-1])
            if cached:
                free = self.scheduler.allocator.total_blocks - held
                kept = np.minimum(cached, free - grown[:-1])
                cached = min(cached, free - begun)
            held += begun
            if held > self.max_held_blocks:
                self.max_held_blocks = held
                first = int(grown.searchsorted(begun))
                self.peak_ns = int(ends[first - 1]) if first else self.timeline.end_ns
        if done:
            rising = np.arange(used, used + size * done, size)
            self.timeline.add_many(ends, (during, kept, rising, *others))
        self._level = Level(held, cached, used + size * done, *others)

    def _computed(self, steps: int) -> None:
        """So many more steps of the running leap are over."""
        assert self._work is not None
        self._done += steps
        self._occupancy.computed(steps * self._work.num_tokens)

    def _count(self, steps: int) -> None:
        """So many steps of the running plan are over: totals."""
        work = self._work
        assert work is not None
        self.num_steps += steps
        self.num_step_tokens += steps * work.num_tokens
        self.max_batch = max(self.max_batch, work.num_sequences)

    # -- results -----------------------------------------------------------------------------------------------

    def _commit(self, plan: Plan) -> None:
        now, steps = self._clock.now, plan.steps
        self._computed(steps - self._done)
        self._count(steps)
        self.num_plans += 1
        self._work = None
        self._done = 0
        decodes = plan.num_decodes
        rows = plan.sampling
        size = len(rows)
        if size > len(self._no_stops):
            self._zeros = np.zeros((MOST_STEPS, 2 * size), np.int32)
            self._no_stops = np.zeros(2 * size, np.int8)
        tokens = self._zeros[:steps, :size] if steps > 1 else self._zeros[0, :size]
        parents = self._beams.parents(plan, rows) if self._beams is not None else None
        results = Results(rows, tokens, self._no_stops[:size], parents)
        outcome = self.scheduler.commit(plan, results, now)
        self.num_output_tokens += len(outcome.rows) if steps == 1 else int(outcome.counts.sum())
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
            self._occupancy.ended(ledger.num_prompt[request] + ledger.num_output[request] - 1)
            if reason != Finish.LENGTH:
                raise InvariantError(f"request {request} ended with {Finish(reason).name}")
        for request in closed:
            if request in self._wide:
                self._wide.remove(request)
                self._occupancy.forking -= 1
            ledger.end(request, now, done=True)
            for tell in self.on_end:
                tell(request)
