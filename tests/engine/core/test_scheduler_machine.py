"""Any order of calls keeps the contract: no starvation, budget kept, one terminal event a request, nothing held at the end.

The stamped KV under the driver fails on any read of a slot that the sequence did not write or share.
"""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.core.plan import Finish
from tests.engine.core.scheduler_driver import Driver, core_config

PREFIXES = [[0] * 40, [1, 0] * 20, [0] * 9 + [1] * 31, [2, 1, 0] * 13]


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(1, 8),
        block_size=st.sampled_from([1, 2, 8, 16]),
        host_blocks=st.integers(0, 8),
        budget=st.integers(4, 12),
        batch=st.integers(1, 4),
        open_plans=st.integers(1, 2),
        watermark=st.sampled_from([0.0, 0.2]),
        prefix_cache=st.booleans(),
        preemption=st.sampled_from(["recompute", "swap"]),
        policy=st.sampled_from(["fcfs", "priority", "fair"]),
        partial=st.sampled_from([None, 1, 2]),
        lazy=st.booleans(),
    )
    def start(
        self,
        num_blocks,
        block_size,
        host_blocks,
        budget,
        batch,
        open_plans,
        watermark,
        prefix_cache,
        preemption,
        policy,
        partial,
        lazy,
    ):
        config = core_config(
            num_blocks,
            block_size,
            {"host_blocks": host_blocks, "watermark": watermark, "prefix_cache": prefix_cache},
            token_budget=budget,
            max_batch=batch,
            max_open_plans=open_plans,
            preemption=preemption,
            policy=policy,
            max_partial_prefills=partial,
            aging_ns=20,
        )
        self.driver = Driver(config, lazy=lazy)

    @rule(
        prefix=st.sampled_from(PREFIXES),
        length=st.integers(0, 39),
        max_tokens=st.one_of(st.none(), st.integers(0, 20)),
        n=st.integers(1, 3),
        private=st.booleans(),
        salt=st.sampled_from(["", "b"]),
        priority=st.integers(0, 2),
        deadline=st.one_of(st.none(), st.integers(1, 60)),
    )
    def submit(self, prefix, length, max_tokens, n, private, salt, priority, deadline):
        self.driver.submit(
            prefix[:length],
            max_tokens,
            n,
            private=private,
            salt=salt,
            tenant=salt,
            priority=priority,
            deadline=deadline and self.driver.now + deadline,
        )

    @rule(pick=st.integers(0, 100))
    @precondition(lambda self: self.driver.requests)
    def abort(self, pick):
        self.driver.abort(pick % len(self.driver.requests))

    @rule()
    def expire(self):
        self.driver.expire()

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

    @rule(pick=st.integers(0, 5), ok=st.booleans())
    @precondition(lambda self: self.driver.transfers)
    def transfer(self, pick, ok):
        self.driver.transfer(pick, ok=ok)

    def teardown(self):
        if hasattr(self, "driver"):
            self.driver.run_out()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def random_driver(rng: random.Random) -> Driver:
    config = core_config(
        rng.choice([1, 2, 3, 5, 8]),
        rng.choice([1, 2, 8, 16]),
        {
            "host_blocks": rng.choice([0, 2, 8]),
            "watermark": rng.choice([0.0, 0.2]),
            "prefix_cache": rng.random() < 0.7,
        },
        token_budget=rng.randint(4, 20),
        max_batch=rng.randint(1, 4),
        max_open_plans=rng.randint(1, 2),
        preemption=rng.choice(["recompute", "swap"]),
        policy=rng.choice(["fcfs", "priority", "fair"]),
        max_partial_prefills=rng.choice([None, 1, 2]),
        aging_ns=rng.choice([0, 20]),
    )
    return Driver(config, lazy=rng.random() < 0.5)


def random_step(driver: Driver, rng: random.Random) -> None:
    action = rng.random()
    if action < 0.15:
        driver.submit(
            rng.choice(PREFIXES)[: rng.randint(1, 39)],
            rng.choice([None, rng.randint(1, 20)]),
            rng.choice([1, 1, 2, 3]),
            private=rng.random() < 0.1,
            salt=rng.choice(["", "b"]),
            tenant=rng.choice("xy"),
            priority=rng.randint(0, 2),
            deadline=rng.choice([None, None, driver.now + rng.randint(1, 60)]),
        )
    elif action < 0.17 and driver.requests:
        driver.abort(rng.randrange(len(driver.requests)))
    elif action < 0.19:
        driver.expire()
    elif action < 0.3 and driver.transfers:
        driver.transfer(rng.randrange(5), ok=rng.random() < 0.8)
    elif action < 0.65 or not driver.open:
        driver.schedule()
    else:
        stops = {
            r: rng.choice([Finish.STOP, Finish.FAILED])
            for r in driver.open[0].requests.tolist()
            if rng.random() < 0.05
        }
        driver.commit(stops, fail=rng.random() < 0.02)


@pytest.mark.parametrize("seed", range(60))
def test_random_workloads_keep_the_contract(seed):
    rng = random.Random(seed)
    driver = random_driver(rng)
    for _ in range(400):
        random_step(driver, rng)
    driver.run_out()
