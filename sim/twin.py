"""The twin: SimPy carries arrivals and step completions, the core decides, a cost model says how long a step takes.

The scheduler is the one that serves live; nothing of its policy is repeated here. Time is integer nanoseconds. The order of calls is the
live loop's: a boundary, at which plans are opened up to the limit, follows each step that ends, after its commit, and each input for which
a plan could be opened at once. Plans run one at a time in the order they were made. Arrivals at the instant of a step's end come before it.

Does not know formats of traces, percentiles or output.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np
import simpy

from engine.core.errors import InvariantError
from engine.core.ids import RequestId
from engine.core.plan import Finish, Plan, Rejected, Request, Results
from engine.core.scheduler import Scheduler
from sim.clock import Clock
from sim.cost import CostModel, StepWork, work_of
from sim.ledger import Ledger
from sim.timeline import Timeline
from sim.workload import Workload
from traces.schema import TraceRequest

SERIES: Final = ("held_blocks", "used_tokens", "running", "waiting", "busy")
"""What `Replica.timeline` integrates; `busy` is 1 while a step runs."""

_ROWS_AT_FIRST: Final = 1024


class Replica:
    """One engine in simulated time: a scheduler, a cost model, and the records of what happened."""

    def __init__(self, env: Clock, scheduler: Scheduler, cost: CostModel, ledger: Ledger) -> None:
        self.ledger = ledger
        self.timeline = Timeline(len(SERIES))
        self.num_steps = 0
        self.num_step_tokens = 0
        """Positions computed, recomputation included."""
        self.num_output_tokens = 0
        self.max_batch = 0
        self.max_held_blocks = 0
        self.on_end: list[Callable[[int], None]] = []
        """Told the number of each request that ends, after it is in the ledger."""
        self._env = env
        self._scheduler = scheduler
        self._cost = cost
        self._max_open = scheduler.config.scheduler.max_open_plans
        self._open: deque[Plan] = deque()
        """Plans that wait for their results, oldest first; the oldest one runs."""
        self._running: StepWork | None = None
        self._boundary_due = False
        self._level: tuple[int, ...] = (0,) * len(SERIES)
        self._zeros = np.zeros(_ROWS_AT_FIRST, np.int32)
        self._no_stops = np.zeros(_ROWS_AT_FIRST, np.int8)

    def submit(self, row: TraceRequest) -> int | None:
        """A request arrives now and is entered in the ledger; its number, or None where it can never run."""
        now = self._env.now
        ledger = self.ledger
        number = ledger.arrive(now, row.num_prompt, row.num_output)
        request = Request(RequestId(number), row.num_prompt, row.num_output)
        answer = self._scheduler.submit(request, now)
        if isinstance(answer, Rejected):
            ledger.reject(number, answer.code, now)
            return None
        if len(self._open) < self._max_open and not self._boundary_due:
            self._boundary_due = True
            self._env.timeout(0).callbacks.append(self._input_boundary)
        return number

    def finish_timeline(self) -> None:
        """Extends the timeline to now, for a run that was cut off in mid-step."""
        self.timeline.add(self._env.now, self._level)

    def _input_boundary(self, _: simpy.Event) -> None:
        self._boundary_due = False
        self._plan()

    def _step_done(self, _: simpy.Event) -> None:
        work = self._running
        assert work is not None
        self._running = None
        self._commit(self._open.popleft())
        self.num_steps += 1
        self.num_step_tokens += work.num_tokens
        self.max_batch = max(self.max_batch, work.num_sequences)
        self._plan()

    def _plan(self) -> None:
        """A boundary: opens as many plans as the core has and the limit allows, and starts the oldest if none runs."""
        now = self._env.now
        while len(self._open) < self._max_open:
            answer = self._scheduler.schedule(now)
            if not isinstance(answer, Plan):
                break
            self._open.append(answer)
        if self._open and self._running is None:
            self._running = work = work_of(self._open[0])
            self._env.timeout(self._cost.step_ns(work)).callbacks.append(self._step_done)
        self._observe()

    def _observe(self) -> None:
        """From now on the series have their new values."""
        self.timeline.add(self._env.now, self._level)
        memory = self._scheduler.memory()
        held = memory.held_blocks
        busy = self._running is not None
        self._level = (held, memory.used_tokens, memory.num_running, memory.num_waiting, busy)
        self.max_held_blocks = max(self.max_held_blocks, held)

    def _commit(self, plan: Plan) -> None:
        now = self._env.now
        decodes = plan.num_decodes
        rows = plan.rows if decodes == len(plan.rows) else plan.rows[plan.samples]
        size = len(rows)
        if size > len(self._zeros):
            self._zeros = np.zeros(2 * size, np.int32)
            self._no_stops = np.zeros(2 * size, np.int8)
        results = Results(rows, self._zeros[:size], self._no_stops[:size])
        outcome = self._scheduler.commit(plan, results, now)
        self.num_output_tokens += len(outcome.rows)
        if size > decodes:
            # Whoever decoded in this step had a token before; prompts that got their first are few.
            prefills = set(plan.requests[decodes:][plan.samples[decodes:]].tolist())
            for request in outcome.requests[-len(prefills) :].tolist():
                if request in prefills:
                    self.ledger.first_token(request, now)
        if len(outcome.ended_rows):
            for request, reason in zip(
                outcome.ended_requests.tolist(), outcome.reasons.tolist(), strict=True
            ):
                self.ledger.end(request, now, done=reason == Finish.LENGTH)
                for tell in self.on_end:
                    tell(request)


class Run(NamedTuple):
    """A replay that is over."""

    replica: Replica
    num_held_back: int
    """Requests that were never sent: at the end of a run that was cut off, they waited for an open one."""


def run_twin(
    requests: Iterable[TraceRequest],
    scheduler: Scheduler,
    cost: CostModel,
    *,
    until_ns: int | None = None,
) -> Run:
    """Replays requests, in arrival order, to the last one's end, or to `until_ns`.

    Raises:
        InvariantError: the scheduler stopped while requests were open.
        TraceError: from `requests`.
    """
    env = Clock()
    replica = Replica(env, scheduler, cost, Ledger())
    workload = Workload(env, requests, replica.submit)
    replica.on_end.append(workload.ended)
    env.run_on(until_ns)
    replica.finish_timeline()
    open_requests = len(replica.ledger) - replica.ledger.num_ended
    if until_ns is None and open_requests:
        raise InvariantError(f"the replay stopped with {open_requests} requests open")
    return Run(replica, workload.num_held_back)
