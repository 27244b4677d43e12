"""The block pool beside a list-and-stack model: states, counts, and the exact order of handing out and evicting."""

import numpy as np
import pytest

from engine.core.blocks import BlockPool
from engine.core.errors import InvariantError
from tests.engine.core.worlds import Choose, World, machine, rule, walk
from tests.reference.frames import Frames


class PoolWorld(World):
    def __init__(self, choose: Choose) -> None:
        self.total = choose.between(1, 8)
        self.pool = BlockPool(self.total, sweep_from=choose.one_of([0, 3, 20]))
        self.model = Frames(self.total)
        self.holders: list[list[int]] = []
        self.moving: list[list[int]] = []

    @rule(weight=3)
    def take(self, choose: Choose) -> None:
        count = choose.between(0, self.total + 1)
        taken, expected = self.pool.take(count), self.model.take(count)
        if expected is None:
            assert taken is None
            return
        frames, evicted = taken
        assert (frames.tolist(), evicted.tolist()) == expected
        self.pool.indexed[evicted] = False
        if count:
            self.holders.append(expected[0])

    @rule(weight=3, when=lambda self: self.holders)
    def index(self, choose: Choose) -> None:
        frames = choose.one_of(self.holders)
        leading = frames[: choose.between(0, len(frames))]
        self.pool.indexed[leading] = True
        for frame in leading:
            self.model.indexed[frame] = True

    @rule(weight=2, when=lambda self: self.findable())
    def share(self, choose: Choose) -> None:
        """Another holder: of held or cached frames, each once."""
        known = self.findable()
        frames = [frame for frame in known if choose.between(0, 1)]
        shared = np.array(frames, np.int32)
        assert self.pool.num_cached_of(shared) == sum(f in self.model.cached for f in frames)
        self.pool.share(shared)
        self.model.share(frames)
        if frames:
            self.holders.append(frames)

    def findable(self) -> list[int]:
        return [f for f in range(self.total) if self.model.refs[f] or f in self.model.cached]

    @rule(weight=4, when=lambda self: self.holders)
    def give(self, choose: Choose) -> None:
        frames = self.holders.pop(choose.between(0, len(self.holders) - 1))
        self.pool.give(np.array(frames, np.int32))
        self.model.give(frames)

    @rule(when=lambda self: self.holders)
    def begin_move(self, choose: Choose) -> None:
        frames = choose.one_of(self.holders)
        self.pool.share(np.array(frames, np.int32))
        self.pool.moves[frames] += 1
        self.model.share(frames)
        self.moving.append(list(frames))

    @rule(when=lambda self: self.moving)
    def end_move(self, choose: Choose) -> None:
        frames = self.moving.pop(choose.between(0, len(self.moving) - 1))
        self.pool.moves[frames] -= 1
        self.pool.give(np.array(frames, np.int32))
        self.model.give(frames)

    def check(self) -> None:
        pool, model = self.pool, self.model
        pool.check_invariants()
        assert pool.refs.tolist() == model.refs
        assert pool.cached_in_order() == model.cached
        assert (pool.free, pool.cached) == (len(model.free), len(model.cached))
        assert pool.available == model.available

    def finish(self, choose: Choose) -> None:
        while self.moving:
            self.end_move(choose)
        while self.holders:
            self.give(choose)
        self.check()
        assert self.pool.available == self.total


TestPool = machine(PoolWorld, examples=40, steps=40)


@pytest.mark.parametrize("seed", range(4))
def test_pool_equals_its_model_on_a_long_walk(seed):
    walk(PoolWorld, seed, 15_000, a_world=500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_pool_equals_its_model_on_a_very_long_walk(seed):
    walk(PoolWorld, seed, 100_000)


def test_stale_queue_entries_are_swept_so_that_the_queue_stays_small():
    pool = BlockPool(4)
    frames, _ = pool.take(4)
    pool.indexed[frames] = True
    for _ in range(5_000):
        pool.give(frames)
        pool.share(frames)
    assert sum(len(entries) for _, entries in pool._queue) <= 2 * 4 + 1024 + 4


def test_a_frame_that_is_free_and_referenced_is_an_invariant_error():
    pool = BlockPool(2)
    pool.refs[0] = 1
    with pytest.raises(InvariantError):
        pool.check_invariants()
