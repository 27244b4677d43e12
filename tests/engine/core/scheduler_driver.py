"""Drives a scheduler the way an engine does, and checks after every call what must always hold."""

from collections import Counter, deque

import msgspec

from engine.core.config import CoreConfig
from engine.core.ids import RequestId, TimeNs
from engine.core.log import Ended
from engine.core.plan import (
    Blocked,
    Finish,
    Idle,
    Outcome,
    Plan,
    Rejected,
    Request,
    Results,
    StepFailed,
)
from engine.core.scheduler import Scheduler
from tests.reference.stamped_kv import StampedKV, results_for


def core_config(num_blocks: int = 8, block_size: int = 4, **scheduler: object) -> CoreConfig:
    return msgspec.convert(
        {
            "memory": {"num_blocks": num_blocks, "block_size": block_size},
            "scheduler": {"max_context": 4096, "max_batch": 8, "token_budget": 16, **scheduler},
        },
        CoreConfig,
    )


class Driver:
    """A scheduler with a stamped KV beside it. `lazy` executes a plan only when it must commit."""

    def __init__(self, config: CoreConfig, *, lazy: bool = True) -> None:
        self.scheduler = Scheduler(config)
        self.kv = StampedKV(config.memory.num_blocks, config.memory.block_size)
        self.lazy = lazy
        self.open: deque[Plan] = deque()
        self.requests: dict[int, Request] = {}
        self.produced: Counter[int] = Counter()
        self.computed: Counter[int] = Counter()
        self.ended: dict[int, Finish] = {}
        self.aborted: set[int] = set()
        self.now = 0

    def _time(self) -> TimeNs:
        self.now += 1
        return TimeNs(self.now)

    def submit(self, num_prompt: int, max_tokens: int | None) -> int | Rejected:
        request = Request(RequestId(len(self.requests)), num_prompt, max_tokens)
        answer = self.scheduler.submit(request, self._time())
        if answer is not None:
            return answer
        self.requests[request.id] = request
        self.check()
        return request.id

    def abort(self, request: int) -> bool:
        ended_here = self.scheduler.abort(RequestId(request), self._time())
        assert ended_here == (request not in self.ended)
        if ended_here:
            self.ended[request] = Finish.ABORTED
        self.check()
        return ended_here

    def schedule(self) -> Plan | Idle | Blocked:
        answer = self.scheduler.schedule(self._time())
        config = self.scheduler.config.scheduler
        if isinstance(answer, Plan):
            assert answer.num_tokens <= config.token_budget
            assert len(answer.rows) <= config.max_batch
            assert len(set(answer.rows.tolist())) == len(answer.rows)
            assert not set(answer.requests.tolist()) & set(self.ended)
            self.open.append(answer)
            if not self.lazy:
                self.kv.execute(answer)
            for request, count in zip(
                answer.requests.tolist(), answer.counts.tolist(), strict=True
            ):
                self.computed[request] += count
        elif isinstance(answer, Blocked):
            assert self.open
        else:
            assert set(self.requests) == set(self.ended)
            assert not self.open
        self.check()
        return answer

    def commit(self, stops: dict[int, int] | None = None, *, fail: bool = False) -> Outcome:
        plan = self.open.popleft()
        if self.lazy:
            self.kv.execute(plan)
        results = StepFailed("scripted") if fail else Results(*results_for(plan, stops or {}))
        outcome = self.scheduler.commit(plan, results, self._time())
        for request in outcome.requests.tolist():
            assert request not in self.ended, "a token after the end"
            self.produced[request] += 1
        for request, reason in zip(outcome.ended.tolist(), outcome.reasons.tolist(), strict=True):
            assert request not in self.ended, "two ends"
            self.ended[request] = Finish(reason)
        self.check()
        return outcome

    def run_out(self, most_steps: int = 10_000) -> None:
        """Runs until nothing is left; fails where that takes more than `most_steps` steps."""
        for _ in range(most_steps):
            answer = self.schedule()
            if isinstance(answer, Idle):
                break
            if isinstance(answer, Blocked):
                self.commit()
        else:
            raise AssertionError("requests wait for ever")
        self.check_end()

    def check(self) -> None:
        self.scheduler.check_invariants()
        report = self.scheduler.memory()
        assert report.free_blocks + report.held_blocks == report.total_blocks
        assert report.used_tokens <= report.allocated_tokens

    def check_end(self) -> None:
        report = self.scheduler.memory()
        assert report.free_blocks == report.total_blocks
        assert report.num_running == report.num_waiting == 0
        assert set(self.ended) == set(self.requests)
        ends = Counter(r.request for r in self.scheduler.log if isinstance(r, Ended))
        assert ends == Counter(dict.fromkeys(self.requests, 1))
        for request, reason in self.ended.items():
            if reason is Finish.LENGTH and self.requests[request].max_tokens is not None:
                assert self.produced[request] == self.requests[request].max_tokens
