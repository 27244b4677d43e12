"""A leap of k equals k single steps, in state and in log, whatever comes between leaps and wherever they are cut."""

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
    """A step runs for STEP_NS; the next is planned when the last one of a plan starts; events fall in between."""

    def __init__(self, config, events, *, leap, seed):
        self.scheduler = Scheduler(config)
        self.events = sorted(events, key=lambda event: event[0])
        self.leap = leap
        self.rng = random.Random(seed)
        self.plans = []
        self.steps = 0
        self.leapt = 0
        self.counts = {}

    def run(self):
        now = 0
        running, ends = None, 0
        transfers = []
        waiting = None
        while True:
            times = [event[0] for event in self.events[:1]] + [t for t, _ in transfers]
            if running is not None:
                times.append(ends)
            if waiting is not None:
                times.append(waiting)
            if not times:
                break
            now = min(times)
            if running is not None and ends == now:
                self.commit(running, now)
                running = None
                if self.plans:
                    running = self.plans.pop(0)
                    ends = now + running.steps * STEP_NS
                    waiting = ends - STEP_NS
            elif transfers and transfers[0][0] == now:
                _, transfer = transfers.pop(0)
                self.scheduler.transfer_done(transfer.id, True, TimeNs(now))
            elif self.events and self.events[0][0] == now:
                self.events.pop(0)[1](self.scheduler, now)
            if waiting == now or waiting is None or running is None:
                waiting = None
                while not self.plans:
                    start = ends if running is not None else now
                    following = self.events[0][0] if self.events else 10**9
                    plan = self.schedule(now, start, following)
                    transfers += [(now + 35, t) for t in self.scheduler.take_transfers()]
                    if plan is None:
                        break
                    if running is None:
                        running, ends = plan, now + plan.steps * STEP_NS
                        if plan.steps > 1:
                            waiting = ends - STEP_NS
                            break
                    else:
                        self.plans.append(plan)
            transfers += [(now + 35, t) for t in self.scheduler.take_transfers()]

    def schedule(self, now, start, following):
        answer = self.scheduler.schedule(TimeNs(now))
        if not isinstance(answer, Plan):
            return None
        if self.leap and following > start:
            started_before = -(-(following - start) // STEP_NS)
            most = self.scheduler.most_steps(answer)
            cut = self.rng.randint(1, 50)
            answer = self.scheduler.extend(answer, min(started_before, most, cut))
        self.steps += answer.steps
        self.leapt += answer.steps - 1
        return answer

    def commit(self, plan, now):
        n = len(plan.sampling)
        shape = (plan.steps, n) if plan.steps > 1 else (n,)
        tokens = np.zeros(shape, np.int32)
        results = Results(plan.sampling, tokens, np.zeros(n, np.int8))
        outcome = self.scheduler.commit(plan, results, TimeNs(now))
        for request, count in zip(outcome.requests.tolist(), outcome.counts.tolist(), strict=True):
            self.counts[request] = self.counts.get(request, 0) + count
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
    assert leaping.counts == single.counts
    assert leaping.steps == single.steps


def test_the_workloads_leap_evict_and_preempt():
    leapt = evicted = preempted = steps = 0
    for seed in range(30):
        rng = random.Random(seed)
        line = Line(random_config(rng), workload(rng), leap=True, seed=seed)
        line.run()
        leapt += line.leapt
        steps += line.steps
        evicted += sum(isinstance(r, Evicted) for r in line.scheduler.log)
        preempted += sum(isinstance(r, Preempted) for r in line.scheduler.log)
    assert leapt > steps / 2
    assert evicted > 100
    assert preempted > 100


def test_nobody_leaps_while_blocks_are_known_by_tokens_that_a_commit_has_yet_to_bring():
    """What a leap computes would be published, at the next admission, under tokens that nobody has told."""
    driver = Driver(core_config(20, 4))
    driver.submit([1] * 8, 60)
    driver.schedule()
    driver.schedule(leap=12)
    assert driver.open[-1].steps == 1
    driver.submit([2] * 5, 4)
    driver.run_out()
    index, answer = driver.scheduler.allocator.index, driver.tokens[0, 0]
    found = index.lookup("", np.array([1] * 8 + answer[:12], np.int32).reshape(-1, 4))
    assert len(found) == 5
