"""Any order of inputs and step ends: the stern model finds nothing, each request ends once, and both replays are equal."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.core.content import TokenContent
from engine.core.errors import ExecutorError
from engine.core.ids import RequestId
from engine.core.log import Ended
from engine.core.plan import Finish, Plan, Request, Results, StepFailed
from engine.core.scheduler import Scheduler
from engine.desk import Desk
from engine.executor import NewSequence, SamplingParams
from engine.transfers import carry_out
from sim.lockstep import replay_lockstep
from tests.engine.toy import core_config, scripted
from traces.recording import RecordingReader
from traces.recording_writer import RecordingWriter

SUBMIT = st.tuples(
    st.just("submit"),
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(1, 12)),
    st.integers(1, 9),
    st.sampled_from([1, 1, 2, 3]),
    st.integers(1, 3),
    st.sampled_from([None, None, 200, 1000]),
)
ABORT = st.tuples(st.just("abort"), st.integers(0, 30))
WAKE = st.tuples(st.just("wake"))
STEP = st.tuples(st.just("step"), st.sampled_from(["sound"] * 8 + ["step fails", "row fails"]))
MOVE = st.tuples(st.just("move"), st.integers(0, 3), st.sampled_from([True, True, True, False]))
WAIT = st.tuples(st.just("wait"), st.integers(1, 500))
EVENTS = st.lists(
    st.one_of(SUBMIT, STEP, STEP, STEP, STEP, MOVE, WAKE, WAIT, ABORT), min_size=1, max_size=80
)


class Drive:
    """The live loop without its tasks: the same discipline, at times of the test's choosing."""

    def __init__(self, path: Path, num_blocks: int, max_open_plans: int, preemption: str) -> None:
        config = core_config(
            num_blocks=num_blocks,
            block_size=4,
            max_context=32,
            host_blocks=num_blocks,
            token_budget=8,
            max_batch=4,
            max_open_plans=max_open_plans,
            preemption=preemption,
        )
        self.scheduler = Scheduler(config)
        self.writer = RecordingWriter(path, config=config, model="none")
        self.num_accepted = 0
        self._now = 0
        self._desk = Desk(self.scheduler, lambda: self._now, self.writer)
        self._executor = scripted(config, step_fault=lambda plan: self._fault)
        self._fault: ExecutorError | None = None
        self._requests: dict[int, tuple[Request, int]] = {}
        self._rows: dict[int, tuple[int, int]] = {}
        self._generated: dict[tuple[int, int], int] = {}
        self._transfers: list = []
        self._wanted = False
        self._next_id = 0

    def submit(self, num_prompt, max_tokens, stop_at, n, first, patience) -> None:
        prompt = np.full(num_prompt, first, np.int32)
        request = Request(
            RequestId(self._next_id),
            num_prompt,
            max_tokens,
            n,
            TokenContent(prompt),
            deadline=None if patience is None else self._now + patience,
        )
        self._next_id += 1
        if self._desk.submit(request) is None:
            self.num_accepted += 1
            self._requests[request.id] = (request, stop_at)
        self._wanted |= self._desk.can_plan

    def abort(self, request: int) -> None:
        self._desk.abort(RequestId(request))
        self._wanted |= self._desk.can_plan

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
        self._fault = ExecutorError("hiccup") if how == "step fails" else None
        sequences = {row: self._rows[row] for row in plan.sampling.tolist()}
        results: Results | StepFailed
        try:
            tokens = self._executor.execute(plan, new).tokens
        except ExecutorError as error:
            results = StepFailed(error.message)
        else:
            stops = np.zeros(len(sequences), np.int8)
            for index, sequence in enumerate(sequences.values()):
                stop_at = self._requests[sequence[0]][1] + sequence[1]
                if self._generated.get(sequence, 0) + 1 == stop_at:
                    stops[index] = Finish.STOP
            if how == "row fails" and len(stops):
                stops[-1] = Finish.FAILED
            results = Results(plan.sampling, tokens, stops)
        self._now += 100
        self._wanted = False
        outcome, plans = self._desk.commit(results, self._now - 90, self._now - 10)
        for row in outcome.rows.tolist():
            sequence = sequences[row]
            self._generated[sequence] = self._generated.get(sequence, 0) + 1
        self._opened(plans)
        return True

    def _opened(self, plans: list[Plan]) -> None:
        for plan in plans:
            for request, index, row in plan.admitted:
                self._rows[row] = (request, index)
        self._transfers.extend(self._desk.take_transfers())

    def run_out(self) -> None:
        """Until nothing is left to do."""
        while self.step("sound") or self.move(0, True) or self._wanted:
            self.wake()
            self.scheduler.check_invariants()


@given(
    events=EVENTS,
    num_blocks=st.integers(1, 8),
    max_open_plans=st.integers(1, 2),
    preemption=st.sampled_from(["recompute", "swap"]),
)
def test_any_drive_ends_every_request_once_and_is_repeated(
    events, num_blocks, max_open_plans, preemption
):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        drive = Drive(path, num_blocks, max_open_plans, preemption)
        for name, *arguments in events:
            getattr(drive, name)(*arguments)
            drive.scheduler.check_invariants()
        drive.run_out()
        drive.writer.close()
        memory = drive.scheduler.memory()
        assert (memory.held_blocks, memory.moving_blocks, memory.host_used_blocks) == (0, 0, 0)
        assert (memory.num_running, memory.num_waiting) == (0, 0)
        with RecordingReader(path) as reader:
            made = [decision for entry in reader.entries() for decision in entry.decisions]
        ended = [
            (decision.request, decision.index) for decision in made if isinstance(decision, Ended)
        ]
        assert len(ended) == len(set(ended))
        assert len({request for request, _ in ended}) == drive.num_accepted
        said: list[str] = []
        assert replay_lockstep(path, said.append) == 0, said
