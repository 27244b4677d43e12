"""What the core's settings may be, which requests are turned away and why, and how long the others may become."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.config import CoreConfig
from engine.core.content import TokenContent
from engine.core.ids import RequestId, TimeNs
from engine.core.memory import BlockManager
from engine.core.plan import Finish, Rejected, Request
from engine.core.scheduler import Scheduler
from tests.engine.core.scheduler_driver import Driver, core_config

MEMORY = {"num_blocks": 8}
LIMITS = {"max_context": 64, "token_budget": 64, "max_batch": 8}
COSTS = {"block_bytes": 1, "link_bytes_per_s": 1.0, "prefill_tokens_per_s": 1.0}


@pytest.mark.parametrize(
    ("memory", "scheduler", "named"),
    [
        ({"num_blocks": 0}, {}, "num_blocks"),
        ({"block_size": 0}, {}, "block_size"),
        ({"watermark": 1.0}, {}, "watermark"),
        ({"watermark": -0.1}, {}, "watermark"),
        ({"host_blocks": -1}, {}, "host_blocks"),
        ({"blocks": 3}, {}, "blocks"),
        ({}, {"max_context": 0}, "max_context"),
        ({}, {"token_budget": 0}, "token_budget"),
        ({}, {"max_batch": 0}, "max_batch"),
        ({}, {"max_batch": 65}, "token_budget"),
        ({}, {"max_partial_prefills": 0}, "max_partial_prefills"),
        ({}, {"policy": "lifo"}, "policy"),
        ({}, {"aging_ns": -1}, "aging_ns"),
        ({}, {"prompt_weight": -1.0}, "prompt_weight"),
        ({}, {"preemption": "drop"}, "preemption"),
        ({}, {"preemption": "auto"}, "swap_costs"),
        ({}, {"swap_costs": {**COSTS, "link_bytes_per_s": 0}}, "link_bytes_per_s"),
        ({}, {"swap_costs": {**COSTS, "block_bytes": 0}}, "block_bytes"),
        ({}, {"max_open_plans": 3}, "max_open_plans"),
        ({}, {"max_open_plans": 0}, "max_open_plans"),
        ({}, {"budget": 3}, "budget"),
    ],
)
def test_a_bad_setting_is_refused_by_name(memory, scheduler, named):
    with pytest.raises((msgspec.ValidationError, ValueError), match=named):
        msgspec.convert(
            {"memory": {**MEMORY, **memory}, "scheduler": {**LIMITS, **scheduler}}, CoreConfig
        )


def test_the_smallest_pool_and_auto_with_its_costs_are_allowed():
    core_config(1, 1, max_batch=1, token_budget=1, preemption="auto", swap_costs=COSTS)


def answer(config: CoreConfig, num_prompt: int, max_tokens: int | None, n: int = 1):
    request = Request(RequestId(0), num_prompt, max_tokens, n)
    return Scheduler(config).submit(request, TimeNs(0))


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "n", "code", "says"),
    [
        (0, 5, 1, "empty_prompt", "at least one"),
        (5, 0, 1, "bad_max_tokens", "at least 1"),
        (5, -3, 1, "bad_max_tokens", "at least 1"),
        (5, 5, 0, "bad_num_sequences", "between 1 and 8"),
        (5, 5, 9, "bad_num_sequences", "between 1 and 8"),
        (30, 35, 1, "context_exceeded", "holds 64"),
        (64, None, 1, "context_exceeded", "holds 64"),
        (20, 14, 1, "pool_exceeded", "holds 32"),
        (33, None, 1, "pool_exceeded", "holds 32"),
        (5, 16, 2, "pool_exceeded", "2 times 16"),
    ],
)
def test_what_can_never_run_is_rejected_with_the_reason(num_prompt, max_tokens, n, code, says):
    config = core_config(8, 4, max_context=64)
    rejected = answer(config, num_prompt, max_tokens, n)
    assert isinstance(rejected, Rejected)
    assert rejected.code == code
    assert says in rejected.message
    assert rejected.message.count(".") == 0


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "n"), [(20, 13, 1), (32, 1, 1), (32, None, 1), (5, 12, 2)]
)
def test_what_exactly_fits_is_taken_and_runs_to_its_end(num_prompt, max_tokens, n):
    driver = Driver(core_config(8, 4, {"watermark": 0.5}, max_context=64))
    driver.submit(num_prompt, max_tokens, n)
    driver.run_out()
    lengths = [len(driver.tokens[0, i]) for i in range(n)]
    assert lengths == [max_tokens or 1] * n


def test_without_max_tokens_the_context_or_the_pool_ends_an_answer():
    for context, expected in [(16, 11), (64, 28)]:
        driver = Driver(core_config(8, 4, max_context=context))
        driver.submit(5, None)
        driver.run_out()
        assert len(driver.tokens[0, 0]) == expected
        assert driver.ended[0] is Finish.LENGTH


@given(
    num_blocks=st.integers(1, 12),
    block_size=st.sampled_from([1, 2, 4, 8]),
    prompt=st.integers(1, 30),
    extra=st.integers(0, 20),
    width=st.integers(1, 4),
)
def test_could_hold_and_longest_agree_and_never_promise_too_much(
    num_blocks, block_size, prompt, extra, width
):
    memory = BlockManager(core_config(num_blocks, block_size).memory)
    holds = memory.could_hold(prompt, prompt + extra, width)
    if holds:
        assert memory.longest(prompt, width) >= prompt + extra
        members = [(row, prompt + extra) for row in range(width)]
        for row, _ in members:
            memory.open(row, None, "", prompt)
        shared = min(prompt, prompt + extra - 1) if width > 1 else 0
        assert memory.admit_group(members, shared, 0).value == "ok"
    else:
        assert memory.longest(prompt, width) < prompt + extra
        own = math.ceil((prompt + extra) / block_size)
        assert width * own > num_blocks


def test_a_request_that_contradicts_itself_is_the_drivers_fault():
    scheduler = Scheduler(core_config())
    content = TokenContent(np.zeros(3, np.int32))
    for request in (
        Request(RequestId(0), 4, 1, content=content),
        Request(RequestId(0), 4, 1, weight=0.0),
        Request(RequestId(0), 4, 1, priority=1 << 30),
    ):
        with pytest.raises(ValueError, match=r"content|weight|priority"):
            scheduler.submit(request, TimeNs(0))


def test_an_id_in_use_is_refused_and_a_finished_one_is_not_known():
    driver = Driver(core_config())
    driver.submit(3, 2)
    with pytest.raises(ValueError, match="request 0 is already here"):
        driver.scheduler.submit(Request(RequestId(0), 3, 2), driver.time())
    driver.run_out()
    assert driver.scheduler.abort(RequestId(0), driver.time()) is False


def test_a_rejected_request_leaves_the_queue_behind_it_moving():
    driver = Driver(core_config(64, 16, max_context=4096))
    assert isinstance(driver.submit(2000, 8), Rejected)
    driver.submit(20, 8)
    driver.run_out()
    assert driver.scheduler.num_waiting == 0
