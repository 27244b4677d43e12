"""Any order of calls keeps the contract: no starvation, budget kept, one terminal event a request, nothing held at the end."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.core.plan import Finish
from tests.engine.core.scheduler_driver import Driver, core_config


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(1, 8),
        block_size=st.sampled_from([1, 2, 8, 16]),
        budget=st.integers(4, 12),
        batch=st.integers(1, 4),
        open_plans=st.integers(1, 2),
        watermark=st.sampled_from([0.0, 0.2]),
        lazy=st.booleans(),
    )
    def start(self, num_blocks, block_size, budget, batch, open_plans, watermark, lazy):
        config = core_config(
            num_blocks, block_size, token_budget=budget, max_batch=batch, max_open_plans=open_plans
        )
        del watermark
        self.driver = Driver(config, lazy=lazy)

    @rule(num_prompt=st.integers(0, 40), max_tokens=st.one_of(st.none(), st.integers(0, 20)))
    def submit(self, num_prompt, max_tokens):
        self.driver.submit(num_prompt, max_tokens)

    @rule(pick=st.integers(0, 100))
    @precondition(lambda self: self.driver.requests)
    def abort(self, pick):
        self.driver.abort(pick % len(self.driver.requests))

    @rule()
    def schedule(self):
        self.driver.schedule()

    @rule(stopping=st.integers(0, 5), reason=st.sampled_from([Finish.STOP, Finish.FAILED]))
    @precondition(lambda self: self.driver.open)
    def commit(self, stopping, reason):
        requests = self.driver.open[0].requests.tolist()
        self.driver.commit({r: reason for i, r in enumerate(requests) if i == stopping})

    @rule()
    @precondition(lambda self: self.driver.open)
    def fail(self):
        self.driver.commit(fail=True)

    def teardown(self):
        if hasattr(self, "driver"):
            self.driver.run_out()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seed", range(40))
def test_random_workloads_keep_the_contract(seed):
    rng = random.Random(seed)
    config = core_config(
        rng.choice([1, 2, 3, 5, 8]),
        rng.choice([1, 2, 8, 16]),
        token_budget=rng.randint(4, 20),
        max_batch=rng.randint(1, 4),
        max_open_plans=rng.randint(1, 2),
    )
    driver = Driver(config, lazy=rng.random() < 0.5)
    for _ in range(300):
        action = rng.random()
        if action < 0.15:
            driver.submit(rng.randint(1, 30), rng.choice([None, rng.randint(1, 20)]))
        elif action < 0.18 and driver.requests:
            driver.abort(rng.randrange(len(driver.requests)))
        elif action < 0.6 or not driver.open:
            driver.schedule()
        else:
            stops = {
                r: rng.choice([Finish.STOP, Finish.FAILED])
                for r in driver.open[0].requests.tolist()
                if rng.random() < 0.05
            }
            driver.commit(stops, fail=rng.random() < 0.02)
    driver.run_out()
