"""When a block can be found: once its step has committed, whether or not anyone has looked for it yet."""

import numpy as np

from engine.core.plan import Finish
from tests.engine.core.scheduler_driver import Driver, core_config


def hits_of(driver: Driver, prompt: list[int]) -> int:
    """Blocks that a request with `prompt`, submitted now, shares."""
    before = driver.scheduler.prefix_hits_tokens
    driver.submit(prompt, 1)
    driver.schedule()
    while driver.open:
        driver.commit()
    size = driver.scheduler.allocator.block_size
    return (driver.scheduler.prefix_hits_tokens - before) // size


def steps(driver: Driver, count: int) -> None:
    for _ in range(count):
        driver.schedule()
        driver.commit()


def test_a_prompt_is_found_while_its_request_still_runs():
    driver = Driver(core_config(32, 4))
    driver.submit(range(10), 40)
    assert hits_of(driver, [*range(10)]) == 0, "its step has not committed"
    assert hits_of(driver, [*range(10), 99]) == 2


def test_what_a_running_request_has_generated_is_found_by_who_continues_it():
    driver = Driver(core_config(32, 4))
    driver.submit(range(10), 40)
    steps(driver, 9)
    answer = driver.tokens[0, 0]
    text = [*range(10), *answer]
    assert hits_of(driver, text[:17]) == 4
    assert hits_of(driver, [*text[:12], 7, 7, 7, 7, 7]) == 3
    assert hits_of(driver, [*text[:9], 7, *text[10:17]]) == 2
    driver.run_out()


def test_of_two_equal_answers_the_first_is_found_and_the_second_publishes_no_more():
    driver = Driver(core_config(32, 4), token=lambda request, index, position: position % 3)
    for _ in range(2):
        driver.submit(range(3), 40)
    steps(driver, 14)
    text = [*range(3), *driver.tokens[0, 0]]
    assert driver.tokens[0, 0] == driver.tokens[1, 0]
    assert hits_of(driver, text[:13]) == 3
    driver.run_out()
    driver.scheduler.check_invariants()


def test_decoding_makes_no_entries_of_its_own_until_somebody_looks():
    driver = Driver(core_config(64, 4))
    for first in (0, 100):
        driver.submit(range(first, first + 9), 60)
    steps(driver, 2)
    assert hits_of(driver, [500]) == 0
    indexed = int(np.count_nonzero(driver.scheduler.allocator.pool.indexed))
    steps(driver, 20)
    assert hits_of(driver, [500, 501]) == 0
    assert np.count_nonzero(driver.scheduler.allocator.pool.indexed) == indexed
    driver.abort(0)
    driver.abort(1)
    while driver.open:
        driver.commit()
    assert np.count_nonzero(driver.scheduler.allocator.pool.indexed) > indexed + 6


def test_a_fork_may_take_rows_beyond_any_that_were_opened():
    driver = Driver(core_config(200, 4, max_batch=40, token_budget=64))
    for number in range(15):
        driver.submit([number] * 3, 30)
    driver.submit([2] * 5, 10, 3)
    driver.run_out()
    assert [len(driver.tokens[15, i]) for i in range(3)] == [10] * 3


def test_a_prompt_is_found_from_the_commit_that_ends_its_request_though_an_open_plan_names_it():
    driver = Driver(core_config(32, 4, max_open_plans=2))
    driver.submit(range(10), 40)
    driver.schedule()
    driver.schedule()
    driver.commit({0: Finish.STOP})
    assert driver.open, "its frames are still to come"
    assert hits_of(driver, [*range(10), 99]) == 2
    driver.run_out()


def test_of_an_aborted_request_what_had_committed_is_found_and_what_had_not_is_not():
    driver = Driver(core_config(32, 4, max_open_plans=2, token_budget=8))
    driver.submit(range(20), 40)
    driver.schedule()
    driver.schedule()
    driver.commit()
    driver.abort(0)
    assert hits_of(driver, [*range(16), 99]) == 2
    driver.run_out()


def test_a_step_that_fails_for_a_request_that_ended_leaves_what_was_found_before():
    driver = Driver(core_config(32, 4, max_open_plans=2))
    driver.submit(range(8), 40)
    driver.schedule()
    driver.schedule()
    driver.commit({0: Finish.STOP})
    driver.commit(fail=True)
    assert hits_of(driver, [*range(8), 99]) == 2
    driver.run_out()
