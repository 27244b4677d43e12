"""Any order of calls keeps the contract: no starvation, budget kept, one terminal event a request, nothing held at the end.

The stamped KV under the driver fails on any read of a slot that the sequence did not write or share.
"""

import pytest

from tests.engine.core.scheduler_world import SchedulerWorld
from tests.engine.core.worlds import machine, walk

TestScheduler = machine(SchedulerWorld, examples=60, steps=40)


@pytest.mark.parametrize("seed", range(12))
def test_random_calls_keep_the_contract(seed):
    walk(SchedulerWorld, seed, 4_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_random_calls_keep_the_contract_on_a_very_long_walk(seed):
    walk(SchedulerWorld, seed, 100_000)
