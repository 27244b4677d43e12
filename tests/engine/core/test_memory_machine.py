"""The block manager on any order of calls: the frames of its model, and no foreign read."""

import pytest

from tests.engine.core.memory_world import MemoryWorld
from tests.engine.core.worlds import machine, walk

TestMemory = machine(MemoryWorld, examples=60, steps=40)


@pytest.mark.parametrize("seed", range(8))
def test_manager_equals_its_model_on_a_long_walk(seed):
    walk(MemoryWorld, seed, 6_500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_manager_equals_its_model_on_a_very_long_walk(seed):
    walk(MemoryWorld, seed, 100_000)
