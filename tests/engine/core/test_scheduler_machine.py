"""Any order of calls keeps the contract: no starvation, budget kept, one terminal event a request, nothing held at the end.

The stamped KV under the driver fails on any read of a slot that the sequence did not write or share.
"""

import pytest

from tests.engine.core.scheduler_world import SchedulerWorld
from tests.engine.core.worlds import machine, walk

TestScheduler = machine(SchedulerWorld, examples=60, steps=40)


@pytest.mark.parametrize("seed", range(16))
def test_random_calls_keep_the_contract(seed):
    walk(SchedulerWorld, seed, 5_000)
