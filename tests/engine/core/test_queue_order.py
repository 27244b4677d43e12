"""Who comes in next: by arrival, by class with aging, by tenant. Nobody waits for ever."""

import random

import pytest

from engine.core.ids import RequestId, TimeNs
from engine.core.plan import Plan, Request
from engine.core.policy import Shares
from engine.core.queue import Waiting, WaitingQueue
from tests.engine.core.scheduler_driver import Driver, core_config


def queue_of(policy: str, aging_ns: int = 0, shares: Shares | None = None) -> WaitingQueue:
    config = core_config(policy=policy, aging_ns=aging_ns).scheduler
    return WaitingQueue(config, shares or Shares(1.0, 1.0))


def push(queue: WaitingQueue, number: int, since: int = 0, priority: int = 0, tenant: str = ""):
    request = Request(RequestId(number), 1, 1, priority=priority, tenant=tenant)
    queue.push(Waiting(request, number, TimeNs(since), 2))


def drain(queue: WaitingQueue, now: int = 0) -> list[int]:
    order = []
    while (head := queue.head(TimeNs(now))) is not None:
        order.append(int(queue.remove(head.request.id).request.id))
    return order


def test_first_come_first_served_ignores_classes_and_tenants():
    queue = queue_of("fcfs", aging_ns=5)
    for number, (priority, tenant) in enumerate([(2, "x"), (0, "y"), (1, "x")]):
        push(queue, number, priority=priority, tenant=tenant)
    assert drain(queue, now=100) == [0, 1, 2]


def test_smaller_classes_go_first_and_arrival_decides_within_one():
    queue = queue_of("priority")
    for number, priority in enumerate([2, 0, 1, 0, 2]):
        push(queue, number, priority=priority)
    assert drain(queue, now=10**12) == [1, 3, 2, 0, 4]


def test_a_waiting_request_rises_one_class_for_each_span():
    queue = queue_of("priority", aging_ns=10)
    push(queue, 0, since=0, priority=2)
    push(queue, 1, since=5, priority=1)
    assert queue.head(TimeNs(9)).request.id == 1
    assert queue.head(TimeNs(10)).request.id == 0  # Both of class 1: the older goes first.
    assert queue.head(TimeNs(15)).request.id == 1
    assert queue.head(TimeNs(20)).request.id == 0


def test_the_next_rise_is_when_the_head_may_change():
    queue = queue_of("priority", aging_ns=10)
    push(queue, 0, since=3, priority=2)
    assert queue.next_rise(TimeNs(3)) is None, "alone in the queue, nothing can change"
    push(queue, 1, since=4, priority=0)
    assert queue.next_rise(TimeNs(4)) == 13
    assert queue.next_rise(TimeNs(13)) == 14
    assert queue_of("priority").next_rise(TimeNs(4)) is None


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
@pytest.mark.parametrize("seed", range(20))
def test_the_head_is_the_least_of_all_that_wait_at_any_time(policy, seed):
    """Against a list that is sorted anew for every question."""
    rng = random.Random(seed)
    aging = rng.choice([0, 7])
    shares = Shares(1.0, 1.0)
    queue = queue_of(policy, aging, shares)
    waiting: dict[int, tuple[int, int, str]] = {}
    now = 0
    for number in range(120):
        now += rng.randint(0, 4)
        if rng.random() < 0.6 or not waiting:
            priority, tenant = rng.randint(0, 3), rng.choice("xyz")
            push(queue, number, now, priority, tenant)
            waiting[number] = (priority, now, tenant)
            if policy == "fair":
                shares.charge_prompt(shares.number(rng.choice("xyz")), rng.randint(0, 9))
        else:
            gone = rng.choice(list(waiting))
            queue.remove(RequestId(gone))
            del waiting[gone]
        if not waiting:
            assert queue.head(TimeNs(now)) is None
            continue

        def key(item, now=now):
            number, (priority, since, tenant) = item
            level = priority - ((now - since) // aging if aging else 0)
            served = shares.served(tenant) if policy == "fair" else 0
            return (level if policy != "fcfs" else 0, served, number)

        expected = min(waiting.items(), key=key)[0]
        assert queue.head(TimeNs(now)).request.id == expected
        assert len(queue) == len(waiting)


def late_comer(aging_ns: int, steps: int) -> list[int] | None:
    """How much later than a request of a low class those came that were admitted before it, all of the highest class."""
    driver = Driver(
        core_config(8, 4, policy="priority", aging_ns=aging_ns, max_batch=1, max_open_plans=1)
    )
    driver.submit(range(4), 2, priority=0, private=True)
    low = driver.submit(range(4), 2, priority=3, private=True)
    came = {low: driver.now}
    for _ in range(steps):
        came[driver.submit(range(4), 2, priority=0, private=True)] = driver.now
        if isinstance(driver.schedule(), Plan):
            driver.commit()
        if (low, 0) in driver.tokens:
            return [came[request] - came[low] for request, _ in driver.tokens if request in came]
    return None


def test_aging_ends_starvation_of_a_low_class():
    assert late_comer(aging_ns=0, steps=100) is None
    later = late_comer(aging_ns=10, steps=100)
    assert later is not None
    assert 15 < max(later) <= 30, (
        "three classes are three rises of 10 ns, counted from each one's own arrival"
    )


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_requests_of_one_tenant_and_class_come_in_by_arrival(policy):
    driver = Driver(core_config(8, 4, policy=policy, max_batch=2, aging_ns=5))
    for _ in range(12):
        driver.submit(range(5), 3, private=True)
    driver.run_out()
    assert [request for request, _ in driver.tokens] == list(range(12))
