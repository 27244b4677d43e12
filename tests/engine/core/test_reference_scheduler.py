"""Decision by decision, the scheduler does what a list of objects does: plans, log and tables, on random drives."""

import random

import pytest

from engine.core.plan import Finish, Plan
from tests.engine.core.scheduler_driver import Driver, core_config
from tests.reference.scheduler import ReferenceScheduler

PREFIXES = [[0] * 40, [1, 0] * 20, [0] * 9 + [1] * 31, [2, 1, 0] * 13]


class Pair:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        blocks, size = rng.randint(1, 8), rng.choice([1, 2, 4, 8])
        budget, batch, plans = rng.randint(4, 20), rng.randint(1, 4), rng.randint(1, 2)
        watermark, cache = rng.choice([0.0, 0.2]), rng.random() < 0.7
        self.capacity = blocks * size
        memory = {"watermark": watermark, "prefix_cache": cache}
        self.driver = Driver(
            core_config(
                blocks,
                size,
                memory,
                token_budget=budget,
                max_batch=batch,
                max_open_plans=plans,
            ),
            check=False,
        )
        self.reference = ReferenceScheduler(
            blocks, size, budget, batch, plans, int(watermark * blocks), cache
        )

    def submit(self) -> None:
        length = self.rng.randint(1, min(39, -(-self.capacity // 2)))
        most = self.rng.randint(1, self.capacity - length + 1)
        tokens = self.rng.choice(PREFIXES)[:length]
        number = self.driver.submit(tokens, most)
        assert isinstance(number, int)
        self.reference.submit(number, tokens, most)

    def abort(self) -> None:
        if self.driver.requests:
            number = self.rng.randrange(len(self.driver.requests))
            self.driver.abort(number)
            self.reference.abort(number)

    def schedule(self) -> bool:
        plan, expected = self.driver.schedule(), self.reference.schedule()
        if not isinstance(plan, Plan):
            assert expected is None
            return False
        columns = zip(
            plan.requests.tolist(),
            plan.rows.tolist(),
            plan.starts.tolist(),
            plan.counts.tolist(),
            plan.samples.tolist(),
            strict=True,
        )
        assert list(columns) == [
            (s.number, s.row, start, count, samples)
            for (s, start, count), samples in zip(expected.items, expected.samples, strict=True)
        ]
        assert (plan.step, plan.num_decodes) == (expected.number, expected.num_decodes)
        return True

    def commit(self) -> None:
        plan = self.driver.open[0]
        requests = plan.requests[plan.samples].tolist()
        stops = {r: Finish.STOP for r in requests if self.rng.random() < 0.05}
        tokens = self.driver.commit(stops).tokens
        heard = iter(tokens.tolist())
        gone = {s.number for s in self.reference.open[0].gone}
        self.reference.commit(
            [0 if request in gone else next(heard) for request in requests],
            [stops.get(request, 0) for request in requests],
        )

    def compare(self) -> None:
        assert self.driver.scheduler.log == self.reference.log
        memory = self.driver.scheduler.allocator
        for row, sequence in self.reference.memory.rows.items():
            assert memory.blocks_of(row).tolist() == sequence.frames
        assert memory.pool.cached_in_order() == self.reference.memory.frames.cached


def drive(seed: int) -> tuple[int, int]:
    """(preemptions, tokens found cached) of some random drives, compared after every call."""
    rng = random.Random(seed)
    preempted = found = 0
    for _ in range(5):
        pair = Pair(rng)
        for _ in range(120):
            action = rng.random()
            if action < 0.15:
                pair.submit()
            elif action < 0.18:
                pair.abort()
            elif action < 0.6 or not pair.driver.open:
                pair.schedule()
            else:
                pair.commit()
            pair.compare()
        while pair.schedule() or pair.driver.open:
            if pair.driver.open:
                pair.commit()
        pair.compare()
        pair.driver.check_end()
        preempted += pair.driver.scheduler.num_preemptions
        found += pair.driver.scheduler.prefix_hits_tokens
    return preempted, found


@pytest.mark.parametrize("seed", range(40))
def test_every_decision_equals_the_reference(seed):
    drive(seed)


def test_the_drives_preempt_and_find_cached_blocks():
    preempted, found = map(sum, zip(*map(drive, range(8)), strict=True))
    assert preempted > 50
    assert found > 200
