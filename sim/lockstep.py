"""Lockstep: proves that a recording follows from its inputs. Two checks, neither with a policy of its own.

*Journal*: the recorded calls, made again on a fresh `Scheduler`, give the same answers and decisions.
*Twin*: SimPy, given only arrivals, aborts, how answers ended and when steps did, makes the same calls at the same times,
and its log is the recording's. Of the live loop it is told one delay: when it got round to an input that found a free slot
for a plan.

Knows recordings and the core; knows no cost model, no tokens and no torch.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import assert_never

import msgspec
import numpy as np
import simpy
from msgspec import Struct

from engine.core import journal
from engine.core.config import CoreConfig
from engine.core.errors import InvariantError, TraceError
from engine.core.ids import RequestId, TimeNs
from engine.core.journal import Abort, Call, Commit, Schedule, Submit
from engine.core.log import Record
from engine.core.plan import Finish, Outcome, Plan, Request, Results, StepFailed
from engine.core.scheduler import Scheduler
from engine.desk import Desk
from traces.recording import Entry, RecordingReader

EQUAL, DIFFERENT = 0, 1


class Difference(Struct, frozen=True):
    """Where a replay first parts from the recording."""

    line: int | None
    """Of the recording; None past its end, or where an input has no place."""
    recorded: str
    replayed: str


class Verdict(Struct, frozen=True):
    """What one check found."""

    num_calls: int
    """Calls that were equal."""
    num_decisions: int
    """Decisions in those calls."""
    difference: Difference | None


class Inputs(Struct):
    """What the twin is told of a run: nothing that the core decided."""

    arrivals: list[tuple[int, Request]] = []
    aborts: list[tuple[int, RequestId]] = []
    steps: list[Commit] = []
    """When each step began, ended and was committed, and whether it failed as a whole."""
    wakes: list[int] = []
    """Boundaries that followed an input and no step."""
    answers: dict[int, tuple[int, Finish]] = {}
    """Request to (generated tokens, reason), where a stop or a failure of the model ended it."""


def replay_lockstep(path: Path, write: Callable[[str], None]) -> int:
    """Runs both checks on a recording, writes a verdict line by line; the exit code, 0 for equal and 1 for different.

    Raises:
        TraceError: the file is no recording, or is damaged.
    """
    inputs, journal_verdict = check_journal(path)
    code = _tell("journal", path, journal_verdict, write)
    if code != EQUAL:
        write("twin: not run, since the journal gives no inputs to trust")
        return code
    return _tell("twin", path, check_twin(path, inputs), write)


def _tell(name: str, path: Path, verdict: Verdict, write: Callable[[str], None]) -> int:
    difference = verdict.difference
    if difference is None:
        write(f"{name}: equal, {verdict.num_calls} calls and {verdict.num_decisions} decisions")
        return EQUAL
    where = "the end" if difference.line is None else f"line {difference.line}"
    write(f"{name}: different at {where} of {path}, after {verdict.num_calls} equal calls")
    write(f"  recorded: {difference.recorded}")
    write(f"  replayed: {difference.replayed}")
    return DIFFERENT


class _Comparison:
    """Counts what is equal, and keeps the first difference."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.num_decisions = 0
        self.difference: Difference | None = None

    def equal(self, entry: Entry, call: Call, decisions: list[Record]) -> bool:
        """Whether a replayed call and its decisions are the recorded ones."""
        if call != entry.call:
            return self.part(entry.line, repr(entry.call), repr(call))
        if tuple(decisions) != entry.decisions:
            return self._part_in_decisions(entry, decisions)
        self.num_calls += 1
        self.num_decisions += len(decisions)
        return True

    def _part_in_decisions(self, entry: Entry, decisions: list[Record]) -> bool:
        pairs = enumerate(zip_longest(entry.decisions, decisions))
        index, (one, other) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
        return self.part(
            entry.line + 1 + index,
            repr(one) if one is not None else "nothing more",
            repr(other) if other is not None else "nothing more",
        )

    def part(self, line: int | None, recorded: str, replayed: str) -> bool:
        """Notes a difference; False."""
        self.difference = Difference(line, recorded, replayed)
        return False

    def verdict(self) -> Verdict:
        """What was found."""
        return Verdict(self.num_calls, self.num_decisions, self.difference)


# -- journal -----------------------------------------------------------------------------------------------------


def check_journal(path: Path) -> tuple[Inputs, Verdict]:
    """Makes the recorded calls again; what the twin is to be told, and the verdict.

    Raises:
        TraceError: the file is no recording, or is damaged.
    """
    comparison = _Comparison()
    with RecordingReader(path) as reader:
        replay = _Journal(reader.header.config)
        for entry in reader.entries():
            try:
                call = replay.make(entry.call)
            except (ValueError, IndexError, InvariantError) as error:
                comparison.part(entry.line, repr(entry.call), f"refused: {error}")
                break
            if not comparison.equal(entry, call, replay.take_log()):
                break
    return replay.inputs, comparison.verdict()


class _Journal:
    """A fresh core, to which recorded calls are made."""

    def __init__(self, config: CoreConfig) -> None:
        self.inputs = Inputs()
        self._scheduler = Scheduler(config)
        self._open: deque[Plan] = deque()
        self._generated: dict[int, int] = {}
        self._last_commit = -1

    def make(self, call: Call) -> Call:
        """Makes the call; its record as made now."""
        now = TimeNs(call.now)
        match call:
            case Submit():
                request = Request(RequestId(call.request), call.num_prompt, call.max_tokens)
                self.inputs.arrivals.append((now, request))
                return journal.submitted(
                    call.call, now, request, self._scheduler.submit(request, now)
                )
            case Abort():
                request_id = RequestId(call.request)
                self.inputs.aborts.append((now, request_id))
                return journal.Abort(
                    call.call, now, request_id, self._scheduler.abort(request_id, now)
                )
            case Schedule():
                answer = self._scheduler.schedule(now)
                if isinstance(answer, Plan):
                    self._open.append(answer)
                if now != self._last_commit and self.inputs.wakes[-1:] != [now]:
                    self.inputs.wakes.append(now)
                return journal.scheduled(call.call, now, answer)
            case Commit():
                return self._commit(call, now)
        assert_never(call)

    def take_log(self) -> list[Record]:
        """Decisions since the last take."""
        return self._scheduler.take_log()

    def _commit(self, call: Commit, now: TimeNs) -> Call:
        plan = self._open.popleft()
        results: Results | StepFailed
        if call.failed is not None:
            results = StepFailed(call.failed)
        else:
            rows = plan.rows[plan.samples]
            stops = np.zeros(len(rows), np.int8)
            for index, reason in call.stops:
                stops[index] = reason
            results = Results(rows, np.zeros(len(rows), np.int32), stops)
        outcome = self._scheduler.commit(plan, results, now)
        self._last_commit = now
        self.inputs.steps.append(call)
        self._learn_answers(outcome, whole_step=call.failed is not None)
        return journal.committed(call.call, now, plan, results, call.started, call.ended)

    def _learn_answers(self, outcome: Outcome, *, whole_step: bool) -> None:
        for request in outcome.requests.tolist():
            self._generated[request] = self._generated.get(request, 0) + 1
        for request, reason in zip(
            outcome.ended_requests.tolist(), outcome.reasons.tolist(), strict=True
        ):
            generated = self._generated.pop(request, 0)
            if reason != Finish.LENGTH and not whole_step:
                self.inputs.answers[request] = (generated, Finish(reason))


# -- twin --------------------------------------------------------------------------------------------------------


def check_twin(path: Path, inputs: Inputs) -> Verdict:
    """Runs SimPy on `inputs` and holds its calls against the recording's.

    Raises:
        TraceError: the file is no recording, or is damaged.
    """
    with RecordingReader(path) as reader:
        twin = _Twin(reader.header.config, inputs, reader.entries())
        twin.run()
        return twin.comparison.verdict()


class _Twin:
    """The live loop's discipline under SimPy's clock.

    Nothing is raised inside a process, since SimPy would rebuild the error from its arguments: what ends the simulation is
    kept in `_error`, or is the comparison's difference.
    """

    def __init__(self, config: CoreConfig, inputs: Inputs, recorded: Iterator[Entry]) -> None:
        self.comparison = _Comparison()
        self._inputs = inputs
        self._recorded = recorded
        self._env = simpy.Environment()
        self._desk = Desk(Scheduler(config), lambda: int(self._env.now), self)
        self._generated: dict[int, int] = {}
        self._wanted = False
        self._error: TraceError | None = None

    def run(self) -> None:
        """Simulates to the end of the inputs, or to the first difference.

        Raises:
            TraceError: the recording is damaged.
        """
        for process in (self._arrivals(), self._aborts(), self._wakes(), self._steps()):
            self._env.process(process)
        while self._env.peek() < math.inf and self.comparison.difference is None:
            self._env.step()
            if self._error is not None:
                raise self._error
        if self.comparison.difference is None:
            entry = self._next()
            if entry is not None:
                self.comparison.part(entry.line, repr(entry.call), "nothing more")

    def call(self, call: Call, decisions: list[Record]) -> None:
        """Takes a call from the desk and compares it."""
        if self.comparison.difference is not None or self._error is not None:
            return
        try:
            entry = self._next()
        except TraceError as error:
            self._error = error
            return
        if entry is None:
            self.comparison.part(None, "nothing more", repr(call))
            return
        if isinstance(entry.call, Commit) and isinstance(call, Commit):
            # A stop that the core discarded is no input; those that counted show in the decisions.
            entry = msgspec.structs.replace(entry, call=_without_stops(entry.call))
            call = _without_stops(call)
        self.comparison.equal(entry, call, decisions)

    def _next(self) -> Entry | None:
        return next(self._recorded, None)

    def _until(self, now: int) -> simpy.Timeout:
        return self._env.timeout(now - int(self._env.now))

    def _arrivals(self) -> Generator[simpy.Event, None, None]:
        for now, request in self._inputs.arrivals:
            yield self._until(now)
            self._desk.submit(request)
            self._wanted |= self._desk.can_plan

    def _aborts(self) -> Generator[simpy.Event, None, None]:
        for now, request in self._inputs.aborts:
            yield self._until(now)
            self._desk.abort(request)
            self._wanted |= self._desk.can_plan

    def _wakes(self) -> Generator[simpy.Event, None, None]:
        for now in self._inputs.wakes:
            yield self._until(now)
            if not self._wanted:
                self.comparison.part(None, f"a boundary at {now}", "no input that asks for one")
                return
            self._wanted = False
            self._desk.plan()

    def _steps(self) -> Generator[simpy.Event, None, None]:
        for step in self._inputs.steps:
            yield self._until(step.now)
            if not self._desk.open_plans:
                self.comparison.part(None, f"a commit of step {step.step}", "no plan is open")
                return
            self._wanted = False
            results = self._results(self._desk.open_plans[0], step)
            outcome, _ = self._desk.commit(results, step.started, step.ended)
            for request in outcome.requests.tolist():
                self._generated[request] = self._generated.get(request, 0) + 1

    def _results(self, plan: Plan, step: Commit) -> Results | StepFailed:
        """Every sampling row goes on, but where its answer is known to end with this token."""
        if step.failed is not None:
            return StepFailed(step.failed)
        rows = plan.rows[plan.samples]
        stops = np.zeros(len(rows), np.int8)
        for index, request in enumerate(plan.requests[plan.samples].tolist()):
            if request in self._inputs.answers:
                length, reason = self._inputs.answers[request]
                # A failing sample is no token of the answer.
                due = length if reason is Finish.FAILED else length - 1
                if self._generated.get(request, 0) == due:
                    stops[index] = reason
        return Results(rows, np.zeros(len(rows), np.int32), stops)


def _without_stops(commit: Commit) -> Commit:
    return msgspec.structs.replace(commit, stops=())
