"""Why a request was preempted, in plain sentences: who needed room, what was free, why this one gave way, and how.

Everything said follows from the decision log and from where requests stood before the call that made the decision.
Knows records and the policy's rules; knows no files.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from engine.core.book import Status
from engine.core.config import CoreConfig
from engine.core.log import Preempted
from engine.core.plan import MemoryReport
from traces.report import numbers

LAST_BY_CLASS: Final = "the last by class, then by arrival,"


class Before(Struct, frozen=True):
    """Where things stood when the call that preempted began."""

    memory: MemoryReport
    running: tuple[int, ...]
    """Requests that ran, in the order in which they give way, last first: by arrival, under `priority` and `fair` by class before that."""


def why(record: Preempted, before: Before, gone: Sequence[int], config: CoreConfig) -> str:
    """The sentences; `gone` are the requests that the same call had preempted before."""
    asking = "it" if record.asking == record.request else f"request {record.asking}"
    parts = [_need(asking, before.memory), _victim(record, before, gone, config), _mode(record)]
    return " ".join(part for part in parts if part)


def _need(asking: str, memory: MemoryReport) -> str:
    left = memory.free_blocks + memory.cached_blocks
    total = memory.total_blocks
    if not left:
        return f"Preempted: {asking} needed one more block, and none of the {total:,} was free or evictable."
    had = "1 was" if left == 1 else f"{left:,} were"
    return (
        f"Preempted: {asking} needed one more block, and none of the {total:,} was left: {had} free or evictable "
        "when the step was planned, and requests before it in line took them."
    )


def _victim(record: Preempted, before: Before, gone: Sequence[int], config: CoreConfig) -> str:
    ran = [request for request in before.running if request not in gone]
    among = f"the {numbers.counted(len(ran), 'request')} that ran"
    last = "the last to arrive" if config.scheduler.policy == "fcfs" else LAST_BY_CLASS
    younger = ran[ran.index(record.request) + 1 :]
    if not younger:
        return f"It gave way as {last} of {among}."
    names = _names(younger)
    kept = "it had" if len(younger) == 1 else "they had"
    return (
        f"It gave way as {last} of {among}, except {names}, immune because {kept} made no progress "
        "since coming back."
    )


def _mode(record: Preempted) -> str:
    tokens = f"{record.num_tokens:,} token{'' if record.num_tokens == 1 else 's'}"
    compared = ""
    if record.swap_ns or record.recompute_ns:
        swap, again = record.swap_ns / 1e6, record.recompute_ns / 1e6
        compared = f", estimated at {swap:,.1f} ms by swap and {again:,.1f} ms by recompute"
    if record.mode == "swap":
        return f"By swap: the blocks of its {tokens} go to the host{compared}."
    return f"By recompute: its {tokens} are computed again, less what the cache keeps{compared}."


def _names(requests: Sequence[int]) -> str:
    if len(requests) == 1:
        return f"request {requests[0]}"
    return f"requests {', '.join(map(str, requests[:-1]))} and {requests[-1]}"


def running(
    statuses: Mapping[int, Status], ranks: Mapping[int, tuple[int, int]]
) -> tuple[int, ...]:
    """Requests whose status is running, by rank."""
    ran = [request for request, status in statuses.items() if status is Status.RUNNING]
    return tuple(sorted(ran, key=lambda request: ranks[request]))
