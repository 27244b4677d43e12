"""A request past its deadline ends with that reason, wherever it stands, and gives back what it holds."""

import pytest

from engine.core.ids import TimeNs
from engine.core.log import Ended
from engine.core.plan import Finish
from tests.engine.core.scheduler_driver import Driver, core_config


def expire_at(driver: Driver, now: int) -> list[int]:
    driver.now = now
    before = set(driver.ended)
    driver.expire()
    return [request for request in driver.ended if request not in before]


def test_only_what_is_due_ends_and_the_timer_names_the_next():
    driver = Driver(core_config(16, 4))
    for deadline in (300, 100, None, 200):
        driver.submit(range(4), 8, private=True, deadline=deadline)
    assert driver.scheduler.next_timer() == 100
    assert expire_at(driver, 98) == []
    assert expire_at(driver, 99) == [1]
    assert driver.scheduler.next_timer() == 200
    assert expire_at(driver, 400) == [3, 0]
    assert driver.scheduler.next_timer() is None
    ends = [r for r in driver.scheduler.log if isinstance(r, Ended)]
    assert [(r.request, r.reason) for r in ends] == [(n, Finish.DEADLINE) for n in (1, 3, 0)]
    driver.run_out()
    assert driver.ended[2] is Finish.LENGTH


def test_the_timer_forgets_requests_that_are_over():
    driver = Driver(core_config(16, 4))
    driver.submit(range(4), 8, deadline=500)
    driver.submit(range(4), 8, deadline=600)
    driver.abort(0)
    assert driver.scheduler.next_timer() == 600


@pytest.mark.parametrize(
    "state", ["waiting", "running", "planned", "preempted", "out", "host", "in"]
)
def test_a_deadline_ends_a_request_in_any_state(state):
    mode = "recompute" if state == "preempted" else "swap"
    config = core_config(8, 4, {"host_blocks": 8, "watermark": 0.0}, preemption=mode, max_batch=2)
    driver = Driver(config)
    driver.submit(range(4), 24, private=True)
    if state == "waiting":
        driver.submit(range(4), 24, private=True)
    driver.submit(range(4), 24, private=True, deadline=10_000)
    late = len(driver.requests) - 1

    def step() -> None:
        driver.schedule()
        while len(driver.open) > (state == "planned"):
            driver.commit()

    step()
    if state in ("preempted", "out", "host", "in"):
        while not driver.scheduler.num_off:
            step()
    if state in ("host", "in"):
        driver.transfer()
    if state == "in":
        while not driver.transfers:
            step()
    assert bool(driver.transfers) == (state in ("out", "in"))
    assert expire_at(driver, 10_000) == [late]
    assert driver.ended[late] is Finish.DEADLINE
    assert not any(row_request == late for row_request in held_requests(driver))
    driver.run_out()


def held_requests(driver: Driver) -> list[int]:
    """Requests that hold frames though nothing of them is open."""
    book = driver.scheduler._book
    rows = [row for row in range(len(book.table.state)) if book.memory.held_by(row)]
    return [int(book.table.request[row]) for row in rows if not book.named(row)]


def test_a_deadline_that_passed_before_submission_ends_the_request_at_the_first_look():
    driver = Driver(core_config(8, 4))
    driver.now = 50
    driver.submit(range(4), 4, deadline=TimeNs(10))
    assert driver.scheduler.next_timer() == 10
    driver.expire()
    assert driver.ended == {0: Finish.DEADLINE}
    driver.run_out()
