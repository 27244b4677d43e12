"""Fair share by virtual token counters: bounded differences, weights, no savings while away, nothing paid twice.

Source: Sheng et al., Fairness in Serving Large Language Models, OSDI 2024, theorem 4.4 and algorithm 2.
"""

import random

import numpy as np
import pytest

from engine.core.plan import Finish, Plan
from engine.core.policy import Shares
from tests.engine.core.scheduler_driver import Driver, core_config

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
LONGEST_PROMPT, LONGEST = 24, 38


class Shop:
    """Tenants that always have requests waiting, and what each was served at every commit."""

    def __init__(self, seed: int, weights: dict[str, float], *, scarce: bool = False) -> None:
        """`scarce`: the pool holds a third of what those that run at once may come to hold."""
        self.rng = random.Random(seed)
        self.weights = weights
        size = self.rng.choice([2, 4, 8])
        batch = self.rng.choice([2, 4, 8])
        # Frames are given on demand, so what runs at once may come to need more than the pool holds: the M of the
        # theorem, which reserves, is what the batch may come to hold.
        self.most_tokens = batch * LONGEST
        self.budget = self.rng.choice([16, 32])
        config = core_config(
            max(-(-LONGEST // size), -(-self.most_tokens // size) // (3 if scarce else 1)),
            size,
            {"host_blocks": self.rng.choice([0, 16])},
            policy="fair",
            token_budget=self.budget,
            max_batch=batch,
            preemption=self.rng.choice(["recompute", "swap"]),
            max_open_plans=self.rng.choice([1, 2]),
            prompt_weight=PROMPT_WEIGHT,
            output_weight=OUTPUT_WEIGHT,
        )
        self.driver = Driver(config, check_every=10)
        self.waiting: dict[str, list[int]] = {tenant: [] for tenant in weights}
        self.history: list[dict[str, float]] = []

    def top_up(self) -> None:
        for tenant, weight in self.weights.items():
            lines = self.waiting[tenant]
            lines[:] = [r for r in lines if (r, 0) not in self.driver.tokens]
            while len(lines) < 3:
                heavy = tenant == "a"  # One tenant sends long prompts, others ask for long answers.
                prompt = self.rng.randint(12, LONGEST_PROMPT) if heavy else self.rng.randint(1, 8)
                output = self.rng.randint(1, 6) if heavy else self.rng.randint(6, 30)
                start = self.rng.randrange(10**6)
                request = self.driver.submit(
                    range(start, start + prompt), output, tenant=tenant, weight=weight
                )
                assert isinstance(request, int)
                lines.append(request)

    def run(self, steps: int) -> None:
        driver = self.driver
        while steps:
            self.top_up()
            answer = driver.schedule()
            if isinstance(answer, Plan):
                steps -= 1
            elif driver.open:
                stops = {}
                if self.rng.random() < 0.05:
                    request = self.rng.choice(driver.open[0].requests.tolist())
                    stops = {request: self.rng.choice([Finish.STOP, Finish.FAILED])}
                driver.commit(stops)
            else:
                driver.transfer()
            self.history.append({tenant: self.served(tenant) for tenant in self.weights})

    def served(self, tenant: str) -> float:
        prompts, outputs = self.driver.prompt_tokens[tenant], self.driver.output_tokens[tenant]
        cost = PROMPT_WEIGHT * prompts + OUTPUT_WEIGHT * outputs
        return cost / self.weights[tenant]

    def spread(self, one: str, other: str) -> float:
        """The largest service difference over any interval."""
        gaps = [served[one] - served[other] for served in self.history]
        return max(gaps) - min(gaps)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("weights", [{"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 1}])
@pytest.mark.parametrize("scarce", [False, True])
def test_backlogged_tenants_stay_within_the_bound_of_each_other(seed, weights, scarce):
    shop = Shop(seed, weights, scarce=scarce)
    shop.run(300)
    lightest = min(weights.values())
    two_u = 2 * max(PROMPT_WEIGHT * LONGEST_PROMPT, OUTPUT_WEIGHT * shop.most_tokens)
    open_plan = max(PROMPT_WEIGHT, OUTPUT_WEIGHT) * shop.budget
    for one in weights:
        for other in weights:
            assert shop.spread(one, other) <= (two_u + open_plan) / lightest


def test_first_come_first_served_breaks_that_bound_so_the_test_can_fail():
    driver = Driver(core_config(24, 4, policy="fcfs", token_budget=16), check=False)
    for _ in range(60):
        for tenant, (prompt, output) in {"a": (24, 6), "b": (1, 6)}.items():
            driver.submit(range(prompt), output, tenant=tenant, private=True)
    driver.run_out()
    served = [driver.prompt_tokens[t] + 2.0 * driver.output_tokens[t] for t in "ab"]
    assert served[0] - served[1] > 2 * OUTPUT_WEIGHT * 8 * LONGEST


def test_service_follows_the_weights():
    shop = Shop(3, {"a": 1, "b": 3})
    shop.run(1_500)
    light, heavy = (shop.served(t) * w for t, w in shop.weights.items())
    assert heavy / light == pytest.approx(3, rel=0.2)


def test_a_returning_tenant_has_saved_nothing_up():
    driver = Driver(core_config(64, 4, policy="fair", max_batch=1, max_open_plans=1))
    driver.submit(range(4), 2, tenant="b", private=True)
    driver.run_out()
    for _ in range(20):
        driver.submit(range(8), 8, tenant="a", private=True)
    for _ in range(60):
        driver.schedule()
        driver.commit()
    for _ in range(10):
        driver.submit(range(8), 8, tenant="b", private=True)
    came = len(driver.tokens)
    while len(driver.tokens) < came + 8:
        driver.schedule()
        driver.commit()
    admitted = list(driver.tokens)[came:]
    tenants = [driver.requests[request].tenant for request, _ in admitted]
    assert 3 <= tenants.count("a") <= 5


def test_cached_and_recomputed_positions_are_free():
    driver = Driver(core_config(16, 4, policy="fair"))
    driver.submit(range(12), 1, tenant="a")
    driver.run_out()
    driver.submit(range(12), 1, tenant="b")
    driver.run_out()
    assert driver.prompt_tokens == {"a": 12, "b": 4}
    driver.check_charges()
    tight = Driver(core_config(8, 4, {"prefix_cache": False}, policy="fair"))
    tight.submit(range(6), 20, tenant="a")
    tight.submit(range(6), 20, tenant="b")
    tight.run_out()
    assert tight.scheduler.num_preemptions
    assert tight.prompt_tokens == {"a": 6, "b": 6}
    tight.check_charges()


@pytest.mark.parametrize("how", ["abort", "fail", "stop"])
def test_discarded_tokens_are_refunded(how):
    driver = Driver(core_config(8, 4, policy="fair"))
    driver.submit(range(3), 9, tenant="a")
    driver.submit(range(3), 9, 2, tenant="b")
    for _ in range(2):
        driver.schedule()
        driver.commit()
    driver.schedule()
    driver.schedule()
    if how == "abort":
        driver.abort(0)
        driver.abort(1)
    elif how == "fail":
        driver.commit(fail=True)
    else:
        driver.commit({0: Finish.STOP, 1: Finish.STOP})
    while driver.open:
        driver.commit()
    driver.check_charges()


# -- counters --------------------------------------------------------------------------------------------------


def test_a_counter_is_lifted_to_the_least_served_that_waits_or_to_the_last_that_left():
    shares = Shares(1.0, 2.0)
    for tenant, tokens in (("a", 50), ("b", 30)):
        shares.enter(tenant, 1.0)
        shares.charge_prompt(shares.number(tenant), tokens)
    assert shares.served("b") == 80, "b came when a, who waits, had been served 50"
    shares.enter("c", 1.0)
    assert shares.served("c") == 50
    shares.leave("b")
    shares.leave("c")
    shares.leave("a")
    shares.enter("d", 1.0)
    assert shares.served("d") == 50
    shares.charge_prompt(shares.number("d"), 9)
    shares.enter("a", 1.0)
    assert shares.served("a") == 59, "a tenant that left with 50 returns where d, who waits, is"
    shares.enter("b", 1.0)
    assert shares.served("b") == 80


def test_a_tenant_that_was_served_more_than_others_is_never_lowered():
    shares = Shares(1.0, 2.0)
    shares.enter("a", 1.0)
    shares.charge_prompt(shares.number("a"), 100)
    shares.leave("a")
    shares.enter("b", 1.0)
    shares.enter("a", 1.0)
    assert shares.served("b") == 100
    assert shares.served("a") == 100


def test_a_new_weight_counts_from_now_on():
    shares = Shares(1.0, 2.0)
    shares.enter("a", 1.0)
    shares.charge_prompt(shares.number("a"), 10)
    shares.enter("a", 2.0)
    assert shares.served("a") == 10
    shares.charge_output(np.array([shares.number("a")] * 3), 1)
    assert shares.served("a") == 13
    shares.charge_output(np.array([shares.number("a")] * 3), -1)
    assert shares.served("a") == 10
