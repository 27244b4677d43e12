"""Drives a scheduler the way an engine does, and checks after every call what must always hold."""

from collections import Counter, deque
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from engine.core.config import CoreConfig
from engine.core.content import TokenContent, TraceContent
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
    Transfer,
)
from engine.core.scheduler import Scheduler
from tests.reference.stamped_kv import StampedKV, stamped_token

FAILED = Finish.FAILED.value


def core_config(
    num_blocks: int = 8,
    block_size: int = 4,
    memory: dict[str, object] | None = None,
    **scheduler: object,
) -> CoreConfig:
    return msgspec.convert(
        {
            "memory": {"num_blocks": num_blocks, "block_size": block_size, **(memory or {})},
            "scheduler": {"max_context": 4096, "max_batch": 8, "token_budget": 16, **scheduler},
        },
        CoreConfig,
    )


class Driver:
    """A scheduler with a stamped KV beside it. `lazy` executes a plan only when it must commit."""

    def __init__(
        self,
        config: CoreConfig,
        *,
        lazy: bool = True,
        check: bool = True,
        check_every: int = 1,
        token: Callable[[int, int, int], int] = stamped_token,
    ) -> None:
        """`check_every`: how often the invariants, which cost the most, are checked."""
        self.scheduler = Scheduler(config)
        memory = config.memory
        self.kv = StampedKV(memory.num_blocks, memory.block_size, memory.host_blocks, token)
        self.lazy = lazy
        self.checking = check
        self.check_every = check_every
        self.calls = 0
        self.open: deque[Plan] = deque()
        self.hashes: dict[tuple[int, ...], int] = {}
        self.sampled: dict[int, list[int] | list[list[int]]] = {}
        self.transfers: list[Transfer] = []
        self.requests: dict[int, Request] = {}
        self.prompts: dict[int, Sequence[int]] = {}
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.sequence: dict[int, tuple[int, int]] = {}
        self.paid: dict[int, int] = {}
        """Prompt positions of a request that were ever computed or found, as a length."""
        self.prompt_tokens: Counter[str] = Counter()
        """By tenant: prompt positions computed for the first time."""
        self.output_tokens: Counter[str] = Counter()
        """By tenant: tokens that it was given."""
        self.ended: dict[int, Finish] = {}
        self.ends: Counter[tuple[int, int]] = Counter()
        self.now = 0

    def time(self) -> TimeNs:
        self.now += 1
        return TimeNs(self.now)

    def submit(
        self,
        prompt: int | Sequence[int],
        max_tokens: int | None,
        n: int = 1,
        *,
        private: bool = False,
        trace_block: int = 0,
        **fields: object,
    ) -> int | Rejected:
        """`trace_block`: the content is known by hashes of so many tokens each, the last one partly filled; 0: by tokens."""
        tokens = list(range(prompt)) if isinstance(prompt, int) else list(prompt)
        content = None if private else TokenContent(np.array(tokens, np.int32))
        if content is not None and trace_block:
            prefixes = [
                tuple(tokens[: at + trace_block]) for at in range(0, len(tokens), trace_block)
            ]
            ids = [self.hashes.setdefault(prefix, len(self.hashes)) for prefix in prefixes]
            content = TraceContent(np.array(ids, np.int64), trace_block)
        request = Request(
            id=RequestId(len(self.requests)),
            num_prompt=len(tokens),
            max_tokens=max_tokens,
            num_sequences=n,
            content=content,
            **fields,
        )
        answer = self.scheduler.submit(request, self.time())
        if answer is not None:
            return answer
        self.requests[request.id] = request
        self.prompts[request.id] = tokens
        self.check()
        return request.id

    def abort(self, request: int) -> bool:
        ended_here = self.scheduler.abort(RequestId(request), self.time())
        assert ended_here == (request not in self.ended)
        if ended_here:
            self.ended[request] = Finish.ABORTED
        self.check()
        return ended_here

    def expire(self) -> None:
        for request in self.scheduler.expire(self.time()):
            assert request not in self.ended
            self.ended[request] = Finish.DEADLINE
        self.check()

    def schedule(self) -> Plan | Idle | Blocked:
        answer = self.scheduler.schedule(self.time())
        config = self.scheduler.config.scheduler
        self._start_transfers()
        if isinstance(answer, Plan):
            assert answer.num_tokens <= config.token_budget
            assert len(answer.rows) <= config.max_batch
            assert len(set(answer.rows.tolist())) == len(answer.rows)
            assert not set(answer.requests.tolist()) & set(self.ended)
            for request_id, index, row in answer.admitted:
                request = self.requests[request_id]
                root = ("private", request_id) if request.content is None else request.salt
                self.kv.begin(row, root, request_id, index, self.prompts[request_id])
                self.sequence[row] = (request_id, index)
                self.tokens.setdefault((request_id, index), [])
            self.open.append(answer)
            if not self.lazy:
                self.sampled[answer.step] = self.kv.execute(answer)
            self._note_prompts(answer)
        elif isinstance(answer, Blocked):
            assert self.open or self.transfers
        else:
            assert set(self.requests) == set(self.ended)
            assert not self.open
            assert not self.transfers
        self.check()
        return answer

    def _note_prompts(self, plan: Plan) -> None:
        ends = (plan.starts + plan.counts).tolist()
        for request, start, end in zip(
            plan.requests.tolist(), plan.starts.tolist(), ends, strict=True
        ):
            prompt = self.requests[request].num_prompt
            fresh = max(0, min(end, prompt) - max(start, self.paid.get(request, 0)))
            self.paid[request] = max(min(end, prompt), self.paid.get(request, 0))
            self.prompt_tokens[self.requests[request].tenant] += fresh

    def check_charges(self) -> None:
        """With nothing open, each tenant was charged for exactly what it was given."""
        assert not self.open
        shares = self.scheduler._queue._shares
        for tenant in {request.tenant for request in self.requests.values()}:
            at = shares.number(tenant)
            charged = (shares._prompt[at], shares._output[at])
            assert charged == (self.prompt_tokens[tenant], self.output_tokens[tenant])

    def commit(
        self, stops: dict[int, int] | None = None, *, fail: bool = False, pick: int = 0
    ) -> Outcome:
        """`pick` chooses the parents of beams."""
        plan = self.open.popleft()
        if plan.step not in self.sampled:
            self.sampled[plan.step] = self.kv.execute(plan)
        tokens = np.array(self.sampled.pop(plan.step), np.int32)
        codes = [(stops or {}).get(self.sequence[row][0], 0) for row in plan.sampling.tolist()]
        failed = {r for r, c in zip(plan.sampling.tolist(), codes, strict=True) if c == FAILED}
        # A sequence that fails alone took no sibling's states with it.
        failed = {r for r in failed if self.requests[self.sequence[r][0]].num_sequences == 1}
        self.kv.spoil(plan, plan.rows.tolist() if fail else failed)
        results = (
            StepFailed("scripted")
            if fail
            else Results(
                plan.sampling, tokens, np.array(codes, np.int8), self._parents(plan.sampling, pick)
            )
        )
        outcome = self.scheduler.commit(plan, results, self.time())
        self._start_transfers()
        for row, token in zip(outcome.rows.tolist(), outcome.tokens.tolist(), strict=True):
            sequence = self.sequence[row]
            assert (plan.step, row) not in self.kv.tainted, "a token of a read of garbage"
            assert sequence[0] not in self.ended, "a token after the end"
            assert not self.ends[sequence], "a token after the end"
            self.tokens[sequence].append(token)
            self.output_tokens[self.requests[sequence[0]].tenant] += 1
        for row, reason in zip(outcome.ended_rows.tolist(), outcome.reasons.tolist(), strict=True):
            sequence = self.sequence[row]
            self.ends[sequence] += 1
            assert self.ends[sequence] == 1, "two ends"
            if Finish(reason) is Finish.LENGTH:
                request = self.requests[sequence[0]]
                assert request.max_tokens in (None, len(self.tokens[sequence]))
        for request_id in outcome.closed:
            assert request_id not in self.ended, "two ends"
            self.ended[request_id] = Finish.LENGTH
        self.check()
        return outcome

    def _parents(self, sampling: np.ndarray, pick: int) -> np.ndarray | None:
        """Rows of a beam go on with any row of the same beam; others with their own history."""
        rows = sampling.tolist()
        parents = list(rows)
        for at, row in enumerate(rows):
            request = self.sequence[row][0]
            if self.requests[request].beam and request not in self.ended:
                beam = [r for r in rows if self.sequence[r][0] == request]
                parents[at] = beam[(pick * (at + 1) + at) % len(beam)]
        return np.array(parents, np.int32) if parents != rows else None

    def transfer(self, pick: int = 0, *, ok: bool = True) -> None:
        transfer = self.transfers.pop(pick % len(self.transfers))
        self.kv.finish(transfer, ok=ok)
        self.scheduler.transfer_done(transfer.id, ok, self.time())
        self._start_transfers()
        self.check()

    def _start_transfers(self) -> None:
        for transfer in self.scheduler.take_transfers():
            self.kv.start(transfer)
            self.transfers.append(transfer)

    def run_out(self, most_steps: int = 20_000) -> None:
        """Runs until nothing is left; fails where that takes more than `most_steps` steps."""
        for _ in range(most_steps):
            answer = self.schedule()
            if isinstance(answer, Idle):
                break
            if isinstance(answer, Blocked):
                if self.open:
                    self.commit()
                else:
                    self.transfer()
        else:
            raise AssertionError("requests wait for ever")
        self.check_end()

    def check(self) -> None:
        self.calls += 1
        if not self.checking or self.calls % self.check_every:
            return
        self.scheduler.check_invariants()
        report = self.scheduler.memory()
        states = (
            report.free_blocks + report.cached_blocks + report.held_blocks + report.moving_blocks
        )
        assert states == report.total_blocks
        assert report.used_tokens <= report.allocated_tokens

    def check_end(self) -> None:
        report = self.scheduler.memory()
        assert report.held_blocks == report.moving_blocks == report.host_used_blocks == 0
        assert report.num_running == report.num_waiting == 0
        assert set(self.ended) == set(self.requests)
        whole = Counter(
            r.request for r in self.scheduler.log if isinstance(r, Ended) and r.index < 0
        )
        assert all(count == 1 for count in whole.values())
        if self.scheduler.config.scheduler.policy == "fair":
            self.check_charges()
