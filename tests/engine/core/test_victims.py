"""Who gives way when frames run out: a choice of its own, apart from who comes in next."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.log import Preempted
from engine.core.policy import youngest_victim
from engine.core.rows import RowTable
from tests.engine.core.scheduler_driver import Driver, core_config

COSTS = {"block_bytes": 100, "link_bytes_per_s": 1e9, "prefill_tokens_per_s": 1e6}


def table_of(rows: list[tuple[int, int, int]]) -> tuple[RowTable, np.ndarray, np.ndarray]:
    """(request, known, floor) of rows in running order."""
    table = RowTable()
    for request, known, floor in rows:
        row = table.take()
        table.open(row, request, 0, rank=request, prompt=1, limit=99)
        table.known[row], table.floor[row] = known, floor
    running = np.arange(len(rows), dtype=np.int32)
    return table, running, table.known[running]


@given(
    widths=st.lists(st.integers(1, 3), min_size=1, max_size=5),
    data=st.data(),
)
def test_a_victim_is_the_youngest_that_may_give_way(widths, data):
    requests = [number for number, width in enumerate(widths) for _ in range(width)]
    progressed = [data.draw(st.booleans()) for _ in requests]
    table, running, known = table_of(
        [(r, 5, 4 if p else 5) for r, p in zip(requests, progressed, strict=True)]
    )
    asking = data.draw(st.integers(0, len(requests) - 1))
    victim = youngest_victim(table, running, known, asking)
    others = [row for row in running.tolist() if requests[row] != 0]
    moved_on = [row for row in others if progressed[row]]
    if requests[asking] == 0:
        allowed = moved_on or others
    else:
        allowed = [row for row in moved_on if requests[row] >= requests[asking]]
    assert victim == (allowed[-1] if allowed else None)


def modes(driver: Driver) -> list[Preempted]:
    return [record for record in driver.scheduler.log if isinstance(record, Preempted)]


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_the_oldest_of_the_highest_class_is_never_preempted(policy):
    driver = Driver(core_config(10, 4, policy=policy, token_budget=32))
    urgent = 3
    for number in range(8):
        driver.submit(range(4), 20, private=True, priority=0 if number >= urgent else 1)
    oldest = urgent if policy != "fcfs" else 0
    driver.run_out()
    assert len(modes(driver)) > 3
    assert oldest not in {record.request for record in modes(driver)}


def test_a_younger_request_of_a_higher_class_outlives_an_older_one():
    driver = Driver(core_config(8, 4, policy="priority", token_budget=32))
    driver.submit(range(4), 24, priority=1, private=True)
    driver.submit(range(4), 24, priority=0, private=True)
    driver.run_out()
    assert {record.request for record in modes(driver)} == {0}


def test_a_preempted_sequence_progresses_before_it_gives_way_again():
    driver = Driver(core_config(10, 4, {"prefix_cache": False}, token_budget=32))
    for _ in range(5):
        driver.submit(range(4), 24, private=True)
    driver.run_out()
    oldest_asked = 0
    for request in range(5):
        tokens = [record.num_tokens for record in modes(driver) if record.request == request]
        oldest_asked += sum(a == b for a, b in pairwise(tokens))
        assert tokens == sorted(tokens)
    assert len(modes(driver)) > 4
    # Without progress only the oldest may take its room.
    assert oldest_asked <= 1


def test_auto_swaps_what_is_long_and_computes_again_what_is_short_and_logs_both_estimates():
    """1 µs a token to compute; 0.1 µs a block each way, or 10 times or 100 times as much."""
    for factor, mode in [(1, "swap"), (10, "swap"), (100, "recompute")]:
        costs = {**COSTS, "block_bytes": 100 * factor}
        driver = Driver(core_config(8, 4, {"host_blocks": 8}, preemption="auto", swap_costs=costs))
        driver.submit(range(4), 24, private=True)
        driver.submit(range(4), 24, private=True)
        driver.run_out()
        first = modes(driver)[0]
        blocks = -(-first.num_tokens // 4)
        assert first.mode == mode
        assert first.recompute_ns == first.num_tokens * 1_000
        assert first.swap_ns in (2 * 100 * factor * blocks, 2 * 100 * factor * (blocks + 1))
        assert (first.swap_ns < first.recompute_ns) == (mode == "swap")


def test_auto_counts_what_the_sequences_of_a_group_share_once():
    driver = Driver(core_config(12, 4, {"host_blocks": 12}, preemption="auto", swap_costs=COSTS))
    driver.submit(range(4), 24, private=True)
    driver.submit(range(12), 16, 2, private=True)
    driver.run_out()
    first = modes(driver)[0]
    assert first.request == 1
    blocks = first.swap_ns // 200
    assert blocks < 2 * -(-first.num_tokens // 8)
    assert first.recompute_ns == (first.num_tokens - 12 + 12 % 4) * 1_000
