"""The frame map says of each frame what looking at the tables one by one says, and the view's deltas lose nothing of it."""

import pytest

from engine.core.frames import FrameState
from tests.engine.core.scheduler_driver import Driver, core_config
from tests.engine.core.scheduler_world import SchedulerWorld
from tests.engine.core.worlds import Choose, walk
from tests.reference.frame_map import SlowView, cells_of, slow_frames
from traces.viewer.delta import delta, whole


class FramesWorld(SchedulerWorld):
    """Any calls to a scheduler; a view that gets deltas shows what a slow reading of the pool does."""

    def __init__(self, choose: Choose) -> None:
        super().__init__(choose)
        self.view = SlowView()
        self.last = self.driver.scheduler.frames()
        self.view.apply(whole(self.last))

    def check(self) -> None:
        super().check()
        frames = self.driver.scheduler.frames()
        expected = slow_frames(self.driver.scheduler)
        assert cells_of(frames) == expected
        self.view.apply(delta(self.last, frames))
        assert self.view.cells == expected
        self.last = frames


@pytest.mark.parametrize("seed", range(4))
def test_map_and_deltas_equal_the_slow_reading_of_the_pool(seed: int) -> None:
    walk(FramesWorld, seed, 500)


def test_states_of_a_frame_over_its_life() -> None:
    driver = Driver(core_config(num_blocks=4, block_size=4))
    seen = []

    def look() -> None:
        seen.append(driver.scheduler.frames().state.tolist())

    look()
    driver.submit([1, 2, 3, 4, 5], 3, n=2)
    driver.schedule()
    driver.commit()
    look()
    driver.run_out()
    look()
    free, held, shared, cached = (
        FrameState.FREE, FrameState.HELD, FrameState.SHARED, FrameState.CACHED,
    )  # fmt: skip
    assert seen == [
        [free] * 4,
        [shared, shared, free, free],
        [cached, free, free, free],
    ]
    assert held not in seen[2]


def test_map_does_not_change_with_the_pool() -> None:
    driver = Driver(core_config(num_blocks=4, block_size=4))
    before = driver.scheduler.frames()
    driver.submit([1, 2, 3, 4, 5], 3)
    driver.schedule()
    assert before.state.tolist() == [FrameState.FREE] * 4
    assert not before.refs.flags.writeable
