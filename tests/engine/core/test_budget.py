"""The token budget of a step: decodes first, chunks from what is left, and so many prompts in parts at once."""

import random

import pytest

from engine.core.plan import Blocked, Plan
from tests.engine.core.scheduler_driver import Driver, core_config


def steps_of(driver: Driver, most: int = 10_000):
    """Plans as they are made; each is committed before the next, and ended requests stop it."""
    for _ in range(most):
        if len(driver.ended) == len(driver.requests):
            return
        answer = driver.schedule()
        if isinstance(answer, Plan):
            yield answer
            driver.commit()
        else:
            assert not isinstance(answer, Blocked) or driver.transfers
            driver.transfer()


def test_a_long_prompt_never_freezes_the_decodes():
    driver = Driver(core_config(256, 4, token_budget=16, max_batch=8))
    for _ in range(3):
        driver.submit(range(4), 60, private=True)
    plans = steps_of(driver)
    for _ in range(3):
        next(plans)
    driver.submit(range(700), 1, private=True)
    for at, plan in enumerate(plans):
        if at < 50:
            assert plan.requests[: plan.num_decodes].tolist() == [0, 1, 2]
            assert plan.num_tokens == 16, "what decodes leave goes to the prompt"
    assert len(driver.ended) == 4


def test_decodes_come_before_chunks_and_both_stay_inside_the_budget():
    rng = random.Random(1)
    driver = Driver(core_config(64, 4, token_budget=8, max_batch=6))
    for _ in range(30):
        driver.submit(range(rng.randint(1, 40)), rng.randint(1, 20), private=True)
    mixed = 0
    for plan in steps_of(driver):
        assert plan.num_tokens <= 8
        assert (plan.counts[: plan.num_decodes] == 1).all()
        mixed += 0 < plan.num_decodes < len(plan.rows)
    assert mixed > 20


@pytest.mark.parametrize("most", [None, 1])
def test_at_most_one_prompt_is_in_parts_and_it_is_the_oldest_that_is_not_computed(most):
    rng = random.Random(7)
    driver = Driver(core_config(128, 4, token_budget=12, max_batch=8, max_partial_prefills=most))
    lengths = [rng.randint(1, 40) for _ in range(40)]
    for length in lengths:
        driver.submit(range(length), rng.randint(1, 6), private=True)
    computed: dict[int, int] = {}
    in_parts = 0
    for plan in steps_of(driver):
        for request, start, count in zip(
            plan.requests.tolist(), plan.starts.tolist(), plan.counts.tolist(), strict=True
        ):
            computed[request] = start + count
        partial = [request for request in computed if computed[request] < lengths[request]]
        assert partial in ([], [max(computed)])
        in_parts += len(partial)
    assert in_parts > 20


def test_admission_leaves_the_watermark_while_others_run_and_not_otherwise():
    driver = Driver(core_config(10, 4, {"watermark": 0.3}, token_budget=64))
    driver.submit(range(40), 1, private=True)
    driver.schedule()
    assert driver.scheduler.memory().held_blocks == 10
    driver.run_out()
    driver.submit(range(16), 8, private=True)
    driver.submit(range(16), 1, private=True)
    plan = driver.schedule()
    assert plan.requests.tolist() == [1], "4 + 4 frames would leave 2 of the 3"
    driver.run_out()
