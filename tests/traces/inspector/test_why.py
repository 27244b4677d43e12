"""Sentences about a preemption say what the log and the policy say, no more."""

import pytest

from engine.core.book import Status
from engine.core.log import Preempted
from engine.core.plan import MemoryReport
from tests.engine.toy import core_config
from traces.inspector.why import Before, running, why

FCFS = core_config()
PRIORITY = core_config(policy="priority")


def before(free: int = 0, cached: int = 0, ran: tuple[int, ...] = (1, 2, 3)) -> Before:
    held = 8 - free - cached
    report = MemoryReport(
        4, 8, free, cached, held, 0, 4 * held, 4 * held, held, 0, 0, len(ran), 0
    )  # fmt: skip
    return Before(report, ran)


def record(request: int = 3, asking: int = 1, mode: str = "recompute", swap=0, again=0):
    return Preempted(7, request, mode, 40, swap, again, asking)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (
            why(record(), before(), [], FCFS),
            "Preempted: request 1 needed one more block, and none of the 8 was free or evictable. It gave way as the last to arrive "
            "of the 3 requests that ran. By recompute: its 40 tokens are computed again, less what the cache keeps.",
        ),
        (
            why(record(asking=3, mode="swap"), before(free=1, cached=2), [], FCFS),
            "Preempted: it needed one more block, and none of the 8 was left: 3 were free or evictable when the step was planned, "
            "and requests before it in line took them. It gave way as the last to arrive of the 3 requests that ran. "
            "By swap: the blocks of its 40 tokens go to the host.",
        ),
    ],
)
def test_whole_sentences(said: str, text: str) -> None:
    assert said == text


def test_younger_requests_that_stayed_are_named_as_immune() -> None:
    said = why(record(request=1, asking=0), before(ran=(0, 1, 2, 3)), [], FCFS)
    assert "of the 4 requests that ran, except requests 2 and 3, immune because they had" in said
    one = why(record(request=1, asking=0), before(ran=(0, 1, 2)), [], FCFS)
    assert "except request 2, immune because it had made no progress" in one


def test_those_that_gave_way_before_in_the_same_step_are_not_counted() -> None:
    assert "last to arrive of the 2 requests" in why(record(request=2), before(), [3], FCFS)


def test_other_policies_do_not_claim_arrival_alone() -> None:
    assert "last by class, then by arrival, of the 3" in why(record(), before(), [], PRIORITY)
    said = why(record(request=2, asking=1), before(), [], PRIORITY)
    assert "by arrival, of the 3 requests that ran, except request 3, immune because it" in said


def test_estimates_are_told_where_they_were_compared() -> None:
    said = why(record(mode="swap", swap=3_100_000, again=12_000_000), before(), [], FCFS)
    assert said.endswith("estimated at 3.1 ms by swap and 12.0 ms by recompute.")


def test_running_are_in_order_of_rank() -> None:
    statuses = {5: Status.RUNNING, 2: Status.RUNNING, 9: Status.SWAPPED}
    assert running(statuses, {2: (0, 1), 5: (0, 0), 9: (0, 2)}) == (5, 2)
    assert running(statuses, {2: (-1, 1), 5: (0, 0), 9: (0, 2)}) == (2, 5)
