"""Who is taken off, how, and what of it may be kept."""

import numpy as np
import pytest

from engine.core.log import Copied, Preempted, SwapEnded, SwapStarted, Uncopied
from engine.core.plan import Finish, Plan
from tests.engine.core.scheduler_driver import Driver, core_config


def records(driver: Driver, kind: type) -> list:
    return [record for record in driver.scheduler.log if isinstance(record, kind)]


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("transfer_first", [False, True])
def test_a_copy_is_taken_back_when_its_row_gives_way_before_the_copy_runs(
    preemption, transfer_first
):
    """Three sequences share a last block; the first takes the last frame for its copy, the second finds none."""
    memory = {"host_blocks": 8, "watermark": 0.0}
    driver = Driver(core_config(4, 4, memory, preemption=preemption, max_open_plans=1))
    driver.submit([1] * 3, 6)
    driver.submit([2] * 5, 2, 3)
    driver.schedule()
    driver.commit()
    plan = driver.schedule()
    assert [type(r) for r in driver.scheduler.log[3:6]] == [Copied, Preempted, Uncopied]
    assert plan.requests.tolist() == [0]
    assert len(plan.copy_sources) == 0
    if transfer_first and driver.transfers:
        driver.transfer()
    driver.run_out()
    assert [len(driver.tokens[1, i]) for i in range(3)] == [2, 2, 2]


def test_siblings_that_wait_for_shared_states_are_not_swapped_with_them():
    """They would come back with frames of their own for what the first has yet to compute."""
    refused = 0
    for frames in range(11, 15):
        memory = {"host_blocks": 8, "watermark": 0.0, "prefix_cache": False}
        config = core_config(frames, 2, memory, preemption="swap", token_budget=4, max_batch=4)
        driver = Driver(config)
        driver.submit([1] * 2, 16)
        driver.submit([2] * 11, 6, 2)
        failed = False
        while len(driver.ended) < 2:
            answer = driver.schedule()
            if driver.transfers and not failed:
                failed = True
                driver.transfer(ok=False)  # So that they come back by recompute first.
            elif driver.open:
                driver.commit()
            elif not isinstance(answer, Plan):
                driver.transfer()
        driver.run_out()
        refused += sum(r.transfer < 0 for r in records(driver, SwapEnded))
        assert [len(driver.tokens[1, i]) for i in range(2)] == [6, 6]
    assert refused


# -- failures --------------------------------------------------------------------------------------------------


def shared_prefix(driver: Driver, tokens: list[int]) -> int:
    size = driver.scheduler.allocator.block_size
    keys = np.array(tokens, np.int32).reshape(-1, size)
    return len(driver.scheduler.allocator.index.lookup("", keys))


def test_what_a_failed_step_computed_for_a_sequence_that_had_stopped_is_not_found():
    driver = Driver(core_config(8, 4))
    driver.submit([1] * 6, 20)
    driver.schedule()
    driver.commit()
    driver.schedule()  # Computes position 6.
    driver.schedule()  # Computes position 7, which fills the block.
    driver.commit({0: Finish.STOP})
    driver.commit(fail=True)
    assert driver.ends[0, 0] == 1
    assert shared_prefix(driver, [1] * 6 + driver.tokens[0, 0]) < 2
    driver.run_out()


@pytest.mark.parametrize("whole_step", [False, True])
def test_what_failed_for_an_aborted_sequence_is_not_found(whole_step):
    driver = Driver(core_config(8, 4, token_budget=8))
    driver.submit([1] * 8, 20)
    driver.schedule()
    driver.abort(0)
    if whole_step:
        driver.commit(fail=True)
    else:
        driver.commit({0: Finish.FAILED})
    assert shared_prefix(driver, [1] * 8) == 0
    driver.run_out()


def test_a_preempted_sequence_whose_open_step_fails_is_computed_again_not_swapped():
    memory = {"host_blocks": 8, "watermark": 0.0}
    driver = Driver(core_config(4, 4, memory, preemption="swap", token_budget=8, max_batch=4))
    driver.submit([1] * 3, 10)
    driver.submit([2] * 12, 1)
    driver.schedule()  # The second's first chunk: 5 of its 12 positions.
    driver.schedule()  # The first computes position 3, the second has 7 more.
    driver.commit()
    driver.schedule()  # The first needs a frame: the second gives way.
    assert [r.mode for r in records(driver, Preempted)] == ["swap"]
    driver.commit(fail=True)
    assert not records(driver, SwapStarted)
    assert [(r.transfer, r.ok) for r in records(driver, SwapEnded)] == [(-1, False)]
    assert shared_prefix(driver, [2] * 12) == 1, "the block of the first chunk, which committed"
    driver.run_out()
    assert len(driver.tokens[1, 0]) == 1


def test_a_beam_that_cannot_run_gives_back_what_was_copied_for_it():
    """The step that runs without it could fail, or be gone before it has run: it must not carry copies of rows that it does not name."""
    driver = Driver(
        core_config(5, 8, {"watermark": 0.0, "host_blocks": 8}, max_open_plans=1, preemption="swap")
    )
    beam = driver.submit([1], 4, 3, beam=True)
    other = driver.submit([2, 2], 5, private=True)
    driver.submit([3] * 12, 4, private=True)
    driver.schedule()
    driver.commit()
    plan = driver.schedule()
    assert len(records(driver, Copied)) == len(records(driver, Uncopied)) == 1
    assert plan.requests.tolist() == [other]
    assert not len(plan.copy_sources)
    driver.commit(fail=True)
    driver.run_out()
    assert [len(driver.tokens[beam, index]) for index in range(3)] == [4, 4, 4]
