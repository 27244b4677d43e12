"""The live loop without its tasks: the same discipline, at times of the test's choosing, recorded."""

from collections import Counter
from pathlib import Path

import numpy as np

from engine.core.content import TokenContent
from engine.core.errors import ExecutorError
from engine.core.ids import RequestId
from engine.core.log import Ended, Preempted, Record
from engine.core.plan import Finish, Plan, Request, Results, StepFailed
from engine.core.scheduler import Scheduler
from engine.desk import Desk
from engine.executor import NewSequence, SamplingParams
from engine.transfers import carry_out
from tests.engine.toy import core_config, scripted
from traces.recording_writer import RecordingWriter

PREEMPTED = "preempted"
SOUND, STEP_FAILS, ROW_FAILS = "sound", "step fails", "row fails"
GONE_FAIL, GONE_STOP, ALL_FAIL = "gone fail", "gone stop", "all fail"
"""What becomes of a step. Gone are the sequences that were preempted or ended since it was planned: their results are
discarded."""


class Drive:
    """Requests of a stern model, driven through a desk by name. `met` counts what befell whom while a step was open."""

    def __init__(
        self,
        path: Path,
        num_blocks: int,
        max_open_plans: int,
        preemption: str,
        policy: str = "fcfs",
        **limits: object,
    ) -> None:
        small = {"block_size": 4, "max_context": 32, "token_budget": 8, "max_batch": 4}
        config = core_config(
            num_blocks=num_blocks,
            host_blocks=num_blocks,
            max_open_plans=max_open_plans,
            preemption=preemption,
            policy=policy,
            **{**small, **limits},
        )
        self.scheduler = Scheduler(config)
        self.writer = RecordingWriter(path, config=config, model="none")
        self.num_accepted = 0
        self.met: Counter[str] = Counter()
        self._now = 0
        self._desk = Desk(self.scheduler, lambda: self._now, self.writer)
        self._desk.watch(self._watch)
        self._executor = scripted(config, step_fault=lambda plan: self._fault)
        self._fault: ExecutorError | None = None
        self._requests: dict[int, tuple[Request, int]] = {}
        self._rows: dict[int, tuple[int, int]] = {}
        self._generated: dict[tuple[int, int], int] = {}
        self._gone: dict[int, dict[tuple[int, int], str]] = {}
        """By open step: the sequences whose results it will discard, and why. Index -1: all of a request."""
        self._transfers: list = []
        self._wanted = False
        self._next_id = 0

    @property
    def num_submitted(self) -> int:
        """Requests so far, those that were refused included."""
        return self._next_id

    def submit(self, num_prompt, max_tokens, stop_at, n, first, patience, **fields) -> None:
        prompt = np.full(num_prompt, first, np.int32)
        request = Request(
            RequestId(self._next_id),
            num_prompt,
            max_tokens,
            n,
            TokenContent(prompt),
            deadline=None if patience is None else self._now + patience,
            **fields,
        )
        self._next_id += 1
        if self._desk.submit(request) is None:
            self.num_accepted += 1
            self._requests[request.id] = (request, stop_at)
        self._wanted |= self._desk.can_plan

    def abort(self, request: int) -> None:
        self._desk.abort(RequestId(request))
        self._wanted |= self._desk.can_plan

    def abort_open(self, pick: int) -> None:
        """The client of a request that an open step names leaves."""
        requests = [request for plan in self._desk.open_plans for request in plan.requests.tolist()]
        if requests:
            self.abort(requests[pick % len(requests)])

    def abort_gone(self, pick: int) -> None:
        """The same, of a request that has given way since."""
        off = [
            request
            for gone in self._gone.values()
            for (request, _), why in gone.items()
            if why == PREEMPTED
        ]
        if off:
            self.abort(off[pick % len(off)])

    def wait(self, span: int) -> None:
        self._now += span
        timer = self._desk.next_timer()
        if timer is not None and timer <= self._now:
            self._desk.expire()
            self._wanted |= self._desk.can_plan

    def wake(self) -> None:
        if self._wanted and self._desk.can_plan:
            self._wanted = False
            self._opened(self._desk.plan())

    def move(self, pick: int, ok: bool) -> bool:
        """Ends a transfer; False where there is none."""
        if not self._transfers:
            return False
        transfer = self._transfers.pop(pick % len(self._transfers))
        if ok:
            carry_out(self._executor, transfer)
        self._now += 10
        self._desk.transfer_done(transfer.id, self._now - 9, self._now - 1, ok=ok)
        self._wanted |= self._desk.can_plan
        return True

    def step(self, how: str) -> bool:
        """Executes and commits the oldest open plan; False where there is none."""
        if not self._desk.open_plans:
            return False
        plan = self._desk.open_plans[0]
        new = []
        for request, index, row in plan.admitted:
            content = self._requests[request][0].content
            new.append(NewSequence(row, request, content.tokens, SamplingParams(), index))
        self._fault = ExecutorError("hiccup") if how == STEP_FAILS else None
        sequences = {row: self._rows[row] for row in plan.sampling.tolist()}
        results: Results | StepFailed
        try:
            tokens = self._executor.execute(plan, new).tokens
        except ExecutorError as error:
            results = StepFailed(error.message)
        else:
            stops = self._stops(plan.step, list(sequences.values()), how)
            results = Results(plan.sampling, tokens, stops)
        self._count(plan.step, results, list(sequences.values()))
        self._now += 100
        self._wanted = False
        outcome, plans = self._desk.commit(results, self._now - 90, self._now - 10)
        for row in outcome.rows.tolist():
            sequence = sequences[row]
            self._generated[sequence] = self._generated.get(sequence, 0) + 1
        self._opened(plans)
        return True

    def _stops(self, step: int, sequences: list[tuple[int, int]], how: str) -> np.ndarray:
        stops = np.zeros(len(sequences), np.int8)
        for index, sequence in enumerate(sequences):
            stop_at = self._requests[sequence[0]][1] + sequence[1]
            if self._generated.get(sequence, 0) + 1 == stop_at:
                stops[index] = Finish.STOP
        gone = [self._why_gone(step, sequence) is not None for sequence in sequences]
        if how == GONE_FAIL:
            stops[gone] = Finish.FAILED
        elif how == GONE_STOP:
            stops[gone] = Finish.STOP
        elif how == ALL_FAIL:
            stops[:] = Finish.FAILED
        elif how == ROW_FAILS and len(stops):
            stops[-1] = Finish.FAILED
        return stops

    def _watch(self, decisions: list[Record]) -> None:
        for decision in decisions:
            match decision:
                case Preempted():
                    self._leaves(decision.request, -1, PREEMPTED)
                case Ended():
                    why = Finish(decision.reason).name.lower()
                    self._leaves(decision.request, decision.index, why)

    def _leaves(self, request: int, index: int, why: str) -> None:
        for plan in self._desk.open_plans:
            gone = self._gone.setdefault(plan.step, {})
            before = gone.get((request, index))
            gone[request, index] = why if before is None else f"{before} and {why}"

    def _why_gone(self, step: int, sequence: tuple[int, int]) -> str | None:
        gone = self._gone.get(step, {})
        return gone.get((sequence[0], -1)) or gone.get(sequence)

    def _count(
        self, step: int, results: Results | StepFailed, sampled: list[tuple[int, int]]
    ) -> None:
        for at, sequence in enumerate(sampled):
            why = self._why_gone(step, sequence)
            if why is not None:
                whole = isinstance(results, StepFailed)
                fate = "step failed" if whole else Finish(results.stops[at]).name.lower()
                self.met[f"{why}, {fate}"] += 1
        self._gone.pop(step, None)

    def _opened(self, plans: list[Plan]) -> None:
        for plan in plans:
            for request, index, row in plan.admitted:
                self._rows[row] = (request, index)
        self._transfers.extend(self._desk.take_transfers())

    def run_out(self) -> None:
        """Until nothing is left to do."""
        while self.step(SOUND) or self.move(0, True) or self._wanted:
            self.wake()
            self.scheduler.check_invariants()
