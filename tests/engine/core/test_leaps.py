"""Steps that were foreseen and taken at once equal single steps, in state and in log, whatever comes between and wherever they are cut."""

import random

import msgspec
import numpy as np
import pytest

from engine.core.content import TokenContent, TraceContent
from engine.core.ids import RequestId, TimeNs
from engine.core.log import Evicted, Preempted
from engine.core.plan import Plan, Request, Results
from engine.core.scheduler import Scheduler
from tests.engine.core.scheduler_driver import Driver, core_config

STEP_NS = 10


class Line:
    """A step runs for STEP_NS; the next are planned as it ends, up to the limit of open plans; events fall in between."""

    def __init__(self, config, events, *, leap, seed):
        self.scheduler = Scheduler(config)
        self.most_open = config.scheduler.max_open_plans
        self.events = sorted(events, key=lambda event: event[0])
        self.leap = leap
        self.rng = random.Random(seed)
        self.plans = []
        self.transfers = []
        self.running = False
        self.ends = 0
        """Of the step that runs."""
        self.steps = self.leapt = self.passed = 0

    def run(self):
        while self.running or self.transfers or self.events:
            times = [event[0] for event in self.events[:1]] + [t for t, _ in self.transfers[:1]]
            if self.running:
                times.append(self.ends)
            now = min(times)
            if self.running and self.ends == now:
                self.running = False
                self.commit(self.plans.pop(0), now)
            elif self.transfers and self.transfers[0][0] == now:
                _, transfer = self.transfers.pop(0)
                self.scheduler.transfer_done(transfer.id, True, TimeNs(now))
            else:
                self.events.pop(0)[1](self.scheduler, now)
            self.plan(now)

    def plan(self, now):
        if not self.plans and not self.schedule(now):
            return
        if not self.running:
            self.running, self.ends = True, now + STEP_NS
            if self.leap and len(self.plans) == 1 and self.take(now):
                return
        while len(self.plans) < self.most_open and self.schedule(now):
            pass

    def schedule(self, now):
        answer = self.scheduler.schedule(TimeNs(now))
        self.transfers += [(now + 35, t) for t in self.scheduler.take_transfers()]
        if isinstance(answer, Plan):
            self.plans.append(answer)
        return isinstance(answer, Plan)

    def take(self, start):
        """Leaps from the plan that starts, to where the next event or chance cuts it; False where nothing is foreseen."""
        scheduler, most_open = self.scheduler, self.most_open
        passes_ends = self.rng.random() < 0.8
        foreseen = scheduler.forecast(
            self.plans[0], self.rng.randint(1, 60), beyond_ends=passes_ends
        )
        if foreseen is None:
            return False
        following = min([event[0] for event in self.events[:1]] or [10**9])
        cut = self.rng.choice([1, 3, 1000])
        # Where the next plan that is not foreseen is made, unless an event finds the line in mid-step.
        done = min(foreseen.steps, (following - start) // STEP_NS + 1, cut) - most_open + 1
        planned = done + most_open - 1
        if done < 0 or (done == 0 and most_open == 1):
            done, planned = 0, most_open
        elif start + done * STEP_NS > following or self.rng.random() < 0.2:
            done = min(done, (following - start) // STEP_NS)
            planned = min(done + most_open, foreseen.steps)
            if planned < done + most_open:
                done = planned - most_open
        advanced = scheduler.advance(foreseen, done, planned, TimeNs(start + done * STEP_NS))
        self.plans = list(advanced.plans)
        self.leapt += done
        self.steps += done
        self.passed += sum(ended.step < done for ended in advanced.ended)
        self.ends = start + (done + 1) * STEP_NS
        self.scheduler.check_invariants()
        if not self.plans:
            self.running = False
        if len(self.plans) < most_open:
            self.plan(start + done * STEP_NS)
        return True

    def commit(self, plan, now):
        n = len(plan.sampling)
        results = Results(plan.sampling, np.zeros(n, np.int32), np.zeros(n, np.int8))
        self.scheduler.commit(plan, results, TimeNs(now))
        self.steps += 1
        self.scheduler.check_invariants()

    def state(self):
        book, memory = self.scheduler._book, self.scheduler.allocator
        table = {k: v.tolist() for k, v in vars(book.table).items() if isinstance(v, np.ndarray)}
        return {
            "table": table,
            "refs": memory.pool.refs.tolist(),
            "cached": memory.pool.cached_in_order(),
            "free": memory.pool._free[: memory.pool.free].tolist(),
            "report": msgspec.to_builtins(self.scheduler.memory()),
            "next": book.next_step,
        }


def workload(rng):
    def submit(request):
        return lambda scheduler, now: scheduler.submit(request, TimeNs(now))

    def abort(number):
        return lambda scheduler, now: scheduler.abort(RequestId(number), TimeNs(now))

    events, now = [], 0
    for number in range(rng.randint(5, 25)):
        now += rng.choice([1, 7, 100, 700]) + 1
        length = rng.randint(1, 40)
        kind = rng.random()
        content = None
        if kind < 0.02:
            content = TokenContent(np.zeros(length, np.int32))
        elif kind < 0.6:
            content = TraceContent(np.arange(-(-length // 8)) + rng.choice([0, 1000]), 8)
        request = Request(
            RequestId(number),
            length,
            rng.randint(1, 200),
            num_sequences=rng.choice([1, 1, 1, 2]),
            content=content,
            tenant=rng.choice("xy"),
            priority=rng.randint(0, 1),
        )
        events.append((now, submit(request)))
        if rng.random() < 0.1:
            events.append((now + rng.randint(1, 900), abort(number)))
    return events


def random_config(rng):
    return core_config(
        rng.choice([30, 60, 120]),
        rng.choice([2, 4, 16]),
        {"host_blocks": rng.choice([0, 40])},
        max_batch=rng.randint(2, 6),
        token_budget=32,
        max_open_plans=rng.randint(1, 2),
        preemption=rng.choice(["recompute", "swap"]),
        policy=rng.choice(["fcfs", "priority", "fair"]),
    )


@pytest.mark.parametrize("seed", range(60))
def test_leaping_equals_single_steps_in_state_and_log(seed):
    rng = random.Random(seed)
    config, events = random_config(rng), workload(rng)
    single = Line(config, events, leap=False, seed=seed)
    leaping = Line(config, events, leap=True, seed=seed)
    single.run()
    leaping.run()
    assert leaping.scheduler.log == single.scheduler.log
    assert leaping.state() == single.state()
    assert leaping.steps == single.steps


def test_the_workloads_leap_evict_and_preempt():
    leapt = passed = evicted = preempted = steps = 0
    for seed in range(30):
        rng = random.Random(seed)
        line = Line(random_config(rng), workload(rng), leap=True, seed=seed)
        line.run()
        leapt += line.leapt
        passed += line.passed
        steps += line.steps
        evicted += sum(isinstance(r, Evicted) for r in line.scheduler.log)
        preempted += sum(isinstance(r, Preempted) for r in line.scheduler.log)
    assert leapt > steps / 2
    assert passed > 20
    assert evicted > 100
    assert preempted > 100


def test_nobody_leaps_while_blocks_are_known_by_tokens_that_a_commit_has_yet_to_bring():
    """What a leap computes would be published, at the next admission, under tokens that nobody has told."""
    driver = Driver(core_config(20, 4))
    driver.submit([1] * 8, 60)
    plan = driver.schedule()
    assert driver.scheduler.forecast(plan, 12) is None
    driver.commit()
    driver.submit([2] * 5, 4)
    driver.run_out()
    index, answer = driver.scheduler.allocator.index, driver.tokens[0, 0]
    found = index.lookup("", np.array([1] * 8 + answer[:12], np.int32).reshape(-1, 4))
    assert len(found) == 5
