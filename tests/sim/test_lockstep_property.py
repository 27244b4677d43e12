"""Any order of inputs and step ends: the stern model finds nothing, each request ends once, and both replays are equal."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import ExecutorError
from engine.core.ids import RequestId
from engine.core.log import Ended
from engine.core.plan import Finish, Request, Results, StepFailed
from engine.core.scheduler import Scheduler
from engine.desk import Desk
from engine.executor import NewSequence, SamplingParams
from sim.lockstep import replay_lockstep
from tests.engine.toy import core_config, scripted
from traces.recording import RecordingReader
from traces.recording_writer import RecordingWriter

SUBMIT = st.tuples(
    st.just("submit"),
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(1, 12)),
    st.integers(1, 9),
)
ABORT = st.tuples(st.just("abort"), st.integers(0, 30))
WAKE = st.tuples(st.just("wake"))
STEP = st.tuples(st.just("step"), st.sampled_from(["sound"] * 8 + ["step fails", "row fails"]))
EVENTS = st.lists(st.one_of(SUBMIT, STEP, STEP, STEP, WAKE, ABORT), min_size=1, max_size=60)


class Drive:
    """The live loop without its tasks: the same discipline, at times of the test's choosing."""

    def __init__(self, path: Path, num_blocks: int, max_open_plans: int) -> None:
        config = core_config(
            num_blocks=num_blocks,
            block_size=4,
            max_context=32,
            token_budget=8,
            max_batch=4,
            max_open_plans=max_open_plans,
        )
        self.scheduler = Scheduler(config)
        self.writer = RecordingWriter(path, config=config, model="none")
        self.num_accepted = 0
        self._now = 0
        self._desk = Desk(self.scheduler, lambda: self._now, self.writer)
        self._executor = scripted(config, step_fault=lambda plan: self._fault)
        self._fault: ExecutorError | None = None
        self._stop_at: dict[int, int] = {}
        self._new: dict[int, NewSequence] = {}
        self._generated: dict[int, int] = {}
        self._wanted = False
        self._next_id = 0

    def submit(self, num_prompt: int, max_tokens: int | None, stop_at: int) -> None:
        request = Request(RequestId(self._next_id), num_prompt, max_tokens)
        self._next_id += 1
        if self._desk.submit(request) is None:
            self.num_accepted += 1
            prompt = np.full(num_prompt, 1 + request.id, np.int32)
            self._new[request.id] = NewSequence(-1, request.id, prompt, SamplingParams())
            self._stop_at[request.id] = stop_at
        self._wanted |= self._desk.can_plan

    def abort(self, request: int) -> None:
        self._desk.abort(RequestId(request))
        self._wanted |= self._desk.can_plan

    def wake(self) -> None:
        if self._wanted and self._desk.can_plan:
            self._desk.plan()
            self._wanted = False

    def step(self, how: str) -> bool:
        """Executes and commits the oldest open plan; False where there is none."""
        if not self._desk.open_plans:
            return False
        plan = self._desk.open_plans[0]
        new = [
            NewSequence(row, request, self._new[request].prompt, SamplingParams())
            for request, _, row in plan.admitted
        ]
        self._fault = ExecutorError("hiccup") if how == "step fails" else None
        results: Results | StepFailed
        try:
            tokens = self._executor.execute(plan, new).tokens
        except ExecutorError as error:
            results = StepFailed(error.message)
        else:
            requests = plan.requests[plan.samples].tolist()
            stops = np.zeros(len(requests), np.int8)
            for index, request in enumerate(requests):
                if self._generated.get(request, 0) + 1 == self._stop_at[request]:
                    stops[index] = Finish.STOP
            if how == "row fails" and len(stops):
                stops[-1] = Finish.FAILED
            results = Results(plan.rows[plan.samples], tokens, stops)
        self._now += 100
        outcome, _ = self._desk.commit(results, self._now - 90, self._now - 10)
        for request in outcome.requests.tolist():
            self._generated[request] = self._generated.get(request, 0) + 1
        self._wanted = False
        return True


@given(events=EVENTS, num_blocks=st.integers(1, 8), max_open_plans=st.integers(1, 2))
def test_any_drive_ends_every_request_once_and_is_repeated(events, num_blocks, max_open_plans):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        drive = Drive(path, num_blocks, max_open_plans)
        for name, *arguments in events:
            getattr(drive, name)(*arguments)
            drive.scheduler.check_invariants()
        while drive.step("sound") or drive._wanted:
            drive.wake()
            drive.scheduler.check_invariants()
        drive.writer.close()
        memory = drive.scheduler.memory()
        assert (memory.held_blocks, memory.num_running, memory.num_waiting) == (0, 0, 0)
        with RecordingReader(path) as reader:
            made = [decision for entry in reader.entries() for decision in entry.decisions]
        ended = [decision.request for decision in made if isinstance(decision, Ended)]
        assert len(ended) == len(set(ended)) == drive.num_accepted
        said: list[str] = []
        assert replay_lockstep(path, said.append) == 0, said
