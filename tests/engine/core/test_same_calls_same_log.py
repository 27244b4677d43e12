"""The same calls give the same log and the same plans, bit for bit, in any process and under any hash seed."""

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.engine.core.scheduler_world import SchedulerWorld
from tests.engine.core.worlds import RandomChoice

ROOT = Path(__file__).resolve().parents[3]


def digest(first: int, last: int) -> str:
    """Of the logs and plans of some random worlds."""
    total = hashlib.sha256()
    for seed in range(first, last):
        choose = RandomChoice(random.Random(seed))
        world = SchedulerWorld(choose)
        names = [name for name, (weight, _) in world.rules().items() for _ in range(weight)]
        for _ in range(150):
            name = choose.one_of(names)
            guard = world.rules()[name][1]
            if guard is None or guard(world):
                getattr(world, name)(choose)
                for plan in world.driver.open:
                    for column in (plan.rows, plan.starts, plan.counts, plan.delta_blocks):
                        total.update(column.tobytes())
        world.driver.run_out()
        total.update(msgspec.json.encode(world.driver.scheduler.log))
    return total.hexdigest()


@pytest.fixture(scope="module")
def here() -> str:
    return digest(0, 12)


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_another_process_with_another_hash_seed_decides_the_same(hash_seed, here):
    code = "from tests.engine.core.test_same_calls_same_log import digest; print(digest(0, 12))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == here


def test_other_calls_give_another_log(here):
    assert digest(1, 13) != here
