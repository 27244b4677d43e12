"""The twin: SimPy carries arrivals and step completions, the core decides, a cost model says how long a step takes.

The scheduler is the one that serves live; nothing of its policy is repeated here. Time is integer nanoseconds. Up to two plans are open, as
live: while one runs the next is made, and at a step's end the order is commit, start the next, plan the one after it. Arrivals at
the instant of a step's end come before it.

Does not know formats of traces, percentiles or output.
"""

from collections.abc import Callable, Generator, Iterable
from typing import Final, NamedTuple

import numpy as np
import simpy

from engine.core.errors import InvariantError
from engine.core.ids import RequestId
from engine.core.plan import Blocked, Finish, Idle, Plan, Rejected, Request, Results
from engine.core.scheduler import Scheduler
from sim.clock import Clock
from sim.cost import CostModel, work_of
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
        self._wake: simpy.Event | None = None
        self._level: tuple[int, ...] = (0,) * len(SERIES)
        self._zeros = np.zeros(_ROWS_AT_FIRST, np.int32)
        self._no_stops = np.zeros(_ROWS_AT_FIRST, np.int8)
        env.process(self._steps())

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
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None
        return number

    def finish_timeline(self) -> None:
        """Extends the timeline to now, for a run that was cut off in mid-step."""
        self.timeline.add(self._env.now, self._level)

    def _steps(self) -> Generator[simpy.Event, None, None]:
        env = self._env
        schedule = self._scheduler.schedule
        current: Plan | None = None
        while True:
            if current is None:
                decision = schedule(env.now)
                if isinstance(decision, Idle):
                    self._observe(busy=0)
                    self._wake = env.event()
                    yield self._wake
                    continue
                if isinstance(decision, Blocked):
                    raise InvariantError("the scheduler waits for a commit though no plan is open")
                current = decision
            work = work_of(current)
            duration_ns = self._cost.step_ns(work)
            ahead = schedule(env.now)
            self._observe(busy=1)
            yield env.timeout(duration_ns)
            self._commit(current)
            self.num_steps += 1
            self.num_step_tokens += work.num_tokens
            self.max_batch = max(self.max_batch, work.num_sequences)
            current = ahead if isinstance(ahead, Plan) else None

    def _observe(self, *, busy: int) -> None:
        """From now on the series have their new values."""
        self.timeline.add(self._env.now, self._level)
        memory = self._scheduler.memory()
        held = memory.held_blocks
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
