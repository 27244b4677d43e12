"""Failures that others have reported in public, as rules of the core."""

import itertools

import numpy as np
import pytest

from engine.core.allocator import Grant
from engine.core.config import MemoryConfig
from engine.core.content import TokenContent
from engine.core.log import Admitted, Preempted, SwapEnded, SwapStarted
from engine.core.memory import BlockManager
from engine.core.plan import Finish, Plan, Rejected
from tests.engine.core.memory_world import MemoryWorld
from tests.engine.core.scheduler_driver import Driver, core_config
from tests.engine.core.test_preemption import records
from tests.engine.core.worlds import walk


class Manager:
    """The calls of the reports on a block manager: rows by letter."""

    def __init__(self, num_blocks: int, block_size: int, **config: object) -> None:
        self.real = BlockManager(
            MemoryConfig(num_blocks=num_blocks, block_size=block_size, **config)
        )
        self.rows: dict[str, int] = {}

    def allocate(self, name: str, tokens: list[int]) -> bool:
        row = self.rows.setdefault(name, len(self.rows))
        self.real.open(row, TokenContent(np.array(tokens, np.int32)), "", len(tokens))
        granted = self.real.admit_group([(row, len(tokens))], 0, 0)
        if granted is not Grant.OK:
            self.real.close(row)
        return granted is Grant.OK

    def computed(self, name: str, num_tokens: int) -> None:
        self.real.publish(self.rows[name], num_tokens)

    def free(self, name: str) -> None:
        self.real.release(self.rows[name])
        self.real.close(self.rows[name])

    def owned(self, name: str) -> int:
        return self.real.held_by(self.rows[name])

    def lookup(self, tokens: list[int]) -> list[int]:
        keys = np.array(tokens, np.int32).reshape(-1, self.real.block_size)
        return self.real.index.lookup("", keys).tolist()

    @property
    def num_free(self) -> int:
        return self.real.free_blocks


def numbers(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


# -- FR-01 -----------------------------------------------------------------------------------------------------


def cached_tokens(driver: Driver, prompt: list[int]) -> int:
    before = driver.scheduler.prefix_hits_tokens
    request = driver.submit(prompt, 4)
    driver.run_out()
    assert len(driver.tokens[request, 0]) == 4
    return driver.scheduler.prefix_hits_tokens - before


def test_fr01_a_prompt_that_is_entirely_cached_still_computes_a_position_and_keeps_the_chain():
    driver = Driver(core_config(32, 16, token_budget=64))
    prompt = numbers(100, 32)
    assert cached_tokens(driver, prompt) == 0
    assert cached_tokens(driver, prompt) == 16
    longer = prompt + numbers(500, 16)
    assert cached_tokens(driver, longer) == 32
    assert cached_tokens(driver, longer) == 32


def test_fr01_an_allocation_that_hits_leaves_something_to_compute():
    manager = Manager(8, 4)
    for length in (4, 8, 9):
        tokens = numbers(0, length)
        assert manager.allocate("a", tokens)
        manager.computed("a", length)
        manager.free("a")
        assert manager.allocate("a", tokens)
        hits = manager.real.last_hits
        assert hits == (length - 1) // 4
        manager.free("a")


# -- FR-02 -----------------------------------------------------------------------------------------------------


def test_fr02_cached_blocks_that_an_admission_would_pin_are_not_also_counted_as_free():
    manager = Manager(6, 4)
    first = numbers(0, 12)
    assert manager.allocate("A", first)
    manager.computed("A", 12)
    manager.free("A")
    assert (manager.num_free, manager.real.pool.cached) == (6, 3)
    assert manager.allocate("B", numbers(900, 8))
    assert (manager.num_free, manager.real.pool.cached) == (4, 3)
    third = first + numbers(300, 8)
    held = manager.real.blocks_of(manager.rows["B"]).tolist()
    assert not manager.allocate("C", third)
    assert (manager.num_free, manager.real.pool.cached) == (4, 3)
    assert manager.real.blocks_of(manager.rows["B"]).tolist() == held
    manager.free("B")
    assert manager.allocate("C", third)
    assert manager.real.last_hits * 4 == 12
    assert manager.num_free == 1


@pytest.mark.parametrize("seed", range(2))
def test_fr02_free_and_owned_frames_are_all_frames_after_any_calls(seed):
    """The memory world checks that, and that a refused call leaves every byte as it was."""
    walk(MemoryWorld, 500 + seed, 1_000)


# -- FR-03 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("free_early", [True, False])
def test_fr03_a_frame_taken_for_new_content_is_not_found_under_its_old_key(free_early):
    manager = Manager(3, 4)
    first = numbers(0, 12)
    assert manager.allocate("A", first)
    manager.computed("A", 12)
    kept = manager.real.blocks_of(manager.rows["A"]).tolist()[:1]
    manager.free("A")
    second = numbers(900, 5)
    assert manager.allocate("B", second)
    assert manager.lookup(first) == kept
    assert manager.lookup(second[:4]) == []
    if not free_early:
        for position in (5, 6, 7):
            row = np.array([manager.rows["B"]], np.int32)
            manager.real.accept(row, np.array([position]), np.array([position]))
        manager.computed("B", 8)
        assert manager.lookup([*second, 5, 6, 7]) == manager.real.blocks_of(1).tolist()
    manager.free("B")
    assert manager.lookup(first) == kept
    assert manager.allocate("C", first)
    assert manager.real.last_hits <= 1


def test_fr03_alternating_prompts_in_a_tiny_pool_answer_as_without_a_cache():
    """The stamped KV fails on any foreign read; answers are also compared."""
    answers = []
    for cache in (True, False):
        driver = Driver(core_config(3, 4, {"prefix_cache": cache}))
        for prompt in (numbers(0, 8), numbers(50, 9), numbers(0, 8), numbers(50, 9)):
            driver.submit(prompt, 4)
            driver.run_out()
        answers.append(driver.tokens)
    assert answers[0] == answers[1]


# -- FR-04 -----------------------------------------------------------------------------------------------------


def test_fr04_a_request_bigger_than_the_cache_is_refused_and_blocks_nobody():
    driver = Driver(core_config(64, 16, max_context=4096, token_budget=512))
    refused = driver.submit(2000, 8)
    assert isinstance(refused, Rejected)
    assert "1024" in refused.message
    driver.submit(20, 8)
    driver.run_out()
    assert driver.ended == {0: Finish.LENGTH}
    assert len(driver.tokens[0, 0]) == 8


def test_fr04_only_oversized_requests_leave_nothing_to_do():
    driver = Driver(core_config(4, 4))
    refused = [driver.submit(17 + i, 8) for i in range(5)]
    assert all(isinstance(answer, Rejected) for answer in refused)
    driver.run_out()


# -- FR-05 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [16, 4])
@pytest.mark.parametrize("cache", [True, False])
def test_fr05_resuming_computes_prompt_and_answer_again_and_nothing_is_streamed_twice(
    budget, cache
):
    config = core_config(8, 4, {"prefix_cache": cache}, token_budget=budget, max_batch=2)
    solo = []
    for prompt in (numbers(0, 6), numbers(70, 6)):
        driver = Driver(config)
        for _ in range(len(solo)):
            driver.submit([1], 1)
            driver.run_out()
        request = driver.submit(prompt, 20)
        driver.run_out()
        solo.append(driver.tokens[request, 0])
    driver = Driver(config)
    driver.submit(numbers(0, 6), 20)
    driver.submit(numbers(70, 6), 20)
    plans = []
    while len(driver.ended) < 2:
        plan = driver.schedule()
        if isinstance(plan, Plan):
            plans.append(plan)
        else:
            driver.commit()
    driver.run_out()
    assert [driver.tokens[0, 0], driver.tokens[1, 0]] == solo
    assert driver.scheduler.num_preemptions >= 1
    preempted = records(driver, Preempted)[0]
    assert preempted.request == 1
    assert preempted.num_tokens > 6
    resumed = [r for r in records(driver, Admitted) if r.request == 1][1]
    again, start = 0, resumed.shared * 4
    for plan in plans:
        for request, first, count in zip(plan.requests, plan.starts, plan.counts, strict=True):
            if plan.step >= resumed.step and request == 1 and first < preempted.num_tokens:
                assert first == start + again
                again += min(count, preempted.num_tokens - first)
    assert start + again == preempted.num_tokens


# -- FR-06 -----------------------------------------------------------------------------------------------------


def test_fr06_a_full_swap_area_makes_groups_wait_or_compute_again_and_ends_nobody():
    memory = {"host_blocks": 6}
    driver = Driver(core_config(32, 4, memory, preemption="swap", token_budget=24, max_batch=24))
    for i in range(12):
        assert driver.submit(numbers(20 * i, 8), 40, 2) == i
    off: set[int] = set()
    came_in: set[int] = set()
    last_seen = 0
    while len(driver.ended) < 12:
        plan = driver.schedule()
        for record in driver.scheduler.log[last_seen:]:
            if isinstance(record, Preempted):
                off.add(record.request)
            elif isinstance(record, Admitted):
                new = record.request not in came_in
                assert not (new and off), "a new prompt came in before what was swapped out"
                came_in.add(record.request)
                off.discard(record.request)
        last_seen = len(driver.scheduler.log)
        if not isinstance(plan, Plan):
            if driver.open:
                driver.commit()
            else:
                driver.transfer()
    driver.run_out()
    assert set(driver.ended.values()) == {Finish.LENGTH}
    assert all(len(tokens) == 40 for tokens in driver.tokens.values())
    assert len(driver.tokens) == 24
    assert records(driver, SwapStarted)
    assert any(r.transfer < 0 for r in records(driver, SwapEnded)), "the swap area never was full"


def test_fr06_swapping_out_without_host_room_is_refused_and_moves_nothing():
    manager = Manager(8, 4, host_blocks=1)
    manager.allocate("A", numbers(0, 8))
    before = manager.real.blocks_of(0).tolist()
    assert manager.real.swap_out(7, [(0, 8)]) is None
    assert manager.real.blocks_of(0).tolist() == before
    assert manager.real.host.free == 1


def test_fr06_a_forked_pair_keeps_its_number_of_distinct_blocks_through_swapping():
    manager = Manager(8, 4, host_blocks=8)
    manager.allocate("A", numbers(0, 10))
    manager.real.fork(0, 1, 10)
    manager.real.make_writable(1, 10)
    assert manager.real.take_copies()
    tables = [manager.real.blocks_of(row).tolist() for row in (0, 1)]
    distinct = len(set(itertools.chain(*tables)))
    assert distinct == 4
    manager.real.copied([tables[0][2]])
    out = manager.real.swap_out(7, [(0, 10), (1, 10)])
    assert len(out.frames) == distinct
    manager.real.moved(out.frames)
    assert manager.num_free == 8
    back = manager.real.swap_in(7, [(0, 11), (1, 11)], 10, 0)
    manager.real.moved(back.frames)
    manager.real.forget(7)
    tables = [manager.real.blocks_of(row).tolist() for row in (0, 1)]
    assert tables[0][:2] == tables[1][:2]
    assert len(set(itertools.chain(*tables))) == distinct
    assert manager.real.host.free == 8
    manager.real.check_invariants()
