"""A call that is refused, or raises for misuse, leaves every byte of the scheduler as it was."""

import pickle
import random
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest

from engine.core.content import TokenContent
from engine.core.ids import RequestId, TimeNs
from engine.core.plan import Finish, Rejected, Request, Results, StepFailed
from engine.core.scheduler import Scheduler
from tests.engine.core.scheduler_driver import Driver
from tests.engine.core.scheduler_world import SchedulerWorld
from tests.engine.core.worlds import RandomChoice

Call = Callable[[], object]


def bad_submissions(scheduler: Scheduler, now: TimeNs, known: list[int]) -> Iterator[Call]:
    new = RequestId(10_000)
    wrong = [
        {"content": TokenContent(np.zeros(3, np.int32))},
        {"weight": 0.0},
        {"weight": float("nan")},
        {"priority": 2**40},
    ]
    for fields in wrong:
        yield lambda f=fields: scheduler.submit(Request(new, 4, 1, **f), now)
    for number in known:
        yield lambda n=number: scheduler.submit(Request(RequestId(n), 1, 1), now)


def bad_commits(driver: Driver, now: TimeNs) -> Iterator[Call]:
    scheduler, plans = driver.scheduler, list(driver.open)
    for plan in plans[1:]:
        yield lambda p=plan: scheduler.commit(p, StepFailed("not its turn"), now)
    if not plans:
        return
    plan, rows = plans[0], plans[0].sampling
    n = len(rows)
    tokens, stops = np.zeros(n, np.int32), np.zeros(n, np.int8)
    stranger = msgspec.structs.replace(plan)
    wrong = [
        (stranger, Results(rows, tokens, stops)),
        (plan, Results(np.append(rows, 0), tokens, stops)),
        (plan, Results(rows, np.zeros((3, n), np.int32), stops)),
        (plan, Results(rows, tokens, np.zeros(n + 1, np.int8))),
    ]
    if n:
        wrong += [
            (plan, Results(rows + 1, tokens, stops)),
            (plan, Results(rows, tokens, np.full(n, Finish.LENGTH, np.int8))),
            (plan, Results(rows, tokens, np.full(n, 77, np.int8))),
            (plan, Results(rows, tokens, stops, np.append(rows, 0))),
        ]
        owners = [driver.sequence[row][0] for row in rows.tolist()]
        if owners[0] != owners[-1]:
            wrong.append((plan, Results(rows, tokens, stops, rows[::-1])))
    for case in wrong:
        yield lambda c=case: scheduler.commit(*c, now)


def bad_times(driver: Driver, now: TimeNs) -> Iterator[Call]:
    scheduler, past = driver.scheduler, TimeNs(now - 1)
    yield lambda: scheduler.submit(Request(RequestId(10_000), 1, 1), past)
    yield lambda: scheduler.abort(RequestId(0), past)
    yield lambda: scheduler.expire(past)
    yield lambda: scheduler.schedule(past)
    for plan in list(driver.open)[:1]:
        yield lambda p=plan: scheduler.commit(p, StepFailed("late"), past)
    for transfer in driver.transfers[:1]:
        yield lambda t=transfer: scheduler.transfer_done(t.id, True, past)


def misuses(driver: Driver, now: TimeNs) -> Iterator[Call]:
    alive = [r for r in driver.requests if r not in driver.ended]
    yield from bad_submissions(driver.scheduler, now, alive)
    yield from bad_commits(driver, now)
    yield from bad_times(driver, now)
    yield lambda: driver.scheduler.transfer_done(9_999, True, now)


def refusals(driver: Driver, now: TimeNs) -> Iterator[Call]:
    """Calls that answer no, or have nothing to do."""
    scheduler = driver.scheduler
    too_long = driver.scheduler.config.memory.num_blocks * 100
    for request in (
        Request(RequestId(10_000), 0, 1),
        Request(RequestId(10_000), 1, 0),
        Request(RequestId(10_000), too_long, 1),
        Request(RequestId(10_000), 1, 1, 99),
        Request(RequestId(10_000), 1, 4096),
    ):
        yield lambda r=request: scheduler.submit(r, now)
    for number in [*driver.ended, 10_000]:
        yield lambda n=number: scheduler.abort(RequestId(n), now)
    for plan in list(driver.open):
        yield lambda p=plan: scheduler.forecast(p, 100)
    yield scheduler.memory
    yield scheduler.check_invariants
    if len(driver.open) == scheduler.config.scheduler.max_open_plans:
        yield lambda: scheduler.schedule(now)


def snapshot(scheduler: Scheduler) -> bytes:
    """The whole state."""
    return pickle.dumps(scheduler)


@pytest.mark.parametrize("seed", range(12))
def test_misuse_and_refusal_change_nothing_in_any_state(seed):
    choose = RandomChoice(random.Random(seed))
    world = SchedulerWorld(choose)
    driver = world.driver
    names = [name for name, (weight, _) in world.rules().items() for _ in range(weight)]
    raised = refused = 0
    for _ in range(60):
        name = choose.one_of(names)
        guard = world.rules()[name][1]
        if guard is not None and not guard(world):
            continue
        getattr(world, name)(choose)
        now = TimeNs(driver.now)
        before = snapshot(driver.scheduler)
        for call in misuses(driver, now):
            with pytest.raises((ValueError, IndexError)):
                call()
            assert snapshot(driver.scheduler) == before
            raised += 1
        for call in refusals(driver, now):
            answer = call()
            assert not isinstance(answer, tuple)
            assert snapshot(driver.scheduler) == before, answer
            refused += isinstance(answer, Rejected) or answer is False
    assert raised > 50
    assert refused > 50
    driver.run_out()
