"""Lockstep: proves that a recording follows from its inputs. Two checks, neither with a policy of its own.

*Journal* (`rerun.py`): the recorded calls, made again on a fresh `Scheduler`, give the same answers and decisions.
*Twin*: SimPy, given only arrivals and their content, aborts, where answers stopped, which samples failed and when steps and
transfers ended, makes the same calls at the same times, and its log is the recording's. Of the live loop it is told one delay: when it
got round to an input that found a free slot for a plan, or to a timer that was due.

Knows recordings and the core; knows no cost model, no tokens and no torch.
"""

import math
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import msgspec
import numpy as np
import simpy

from engine.core.aliases import PlainAliases
from engine.core.arrays import I32
from engine.core.config import CoreConfig
from engine.core.errors import TraceError
from engine.core.journal import Call, Commit
from engine.core.log import Record
from engine.core.plan import Finish, Plan, Results, StepFailed
from engine.core.scheduler import Scheduler
from engine.desk import Desk
from sim.rerun import Inputs, check_journal
from sim.verdict import Comparison, Verdict
from traces.recording import Entry, RecordingReader
from traces.report import numbers
from traces.rerun import Rows, Sequence

EQUAL, DIFFERENT = 0, 1


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
        write(
            f"{name}: equal, {numbers.counted(verdict.num_calls, 'call')} and {numbers.counted(verdict.num_decisions, 'decision')}"
        )
        return EQUAL
    where = "the end" if difference.line is None else f"line {difference.line}"
    write(f"{name}: different at {where} of {path}, after {verdict.num_calls} equal calls")
    write(f"  recorded: {difference.recorded}")
    write(f"  replayed: {difference.replayed}")
    return DIFFERENT


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
        self.comparison = Comparison()
        self._inputs = inputs
        self._recorded = recorded
        self._env = simpy.Environment()
        self.aliases = PlainAliases(config.memory.block_size)
        self._desk = Desk(Scheduler(config), lambda: int(self._env.now), self)
        self._rows = Rows()
        self._generated: dict[Sequence, int] = {}
        self._wanted = False
        self._error: TraceError | None = None

    def run(self) -> None:
        """Simulates to the end of the inputs, or to the first difference.

        Raises:
            TraceError: the recording is damaged.
        """
        for process in (
            self._arrivals(),
            self._aborts(),
            self._expiries(),
            self._moves(),
            self._wakes(),
            self._steps(),
        ):
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
            entry = msgspec.structs.replace(entry, call=_heard(entry.call))
            call = _heard(call)
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

    def _expiries(self) -> Generator[simpy.Event, None, None]:
        for now in self._inputs.expiries:
            yield self._until(now)
            timer = self._desk.next_timer()
            if timer is None or timer > now:
                self.comparison.part(None, f"an expiry at {now}", "no timer that is due")
                return
            self._desk.expire()
            self._wanted |= self._desk.can_plan

    def _moves(self) -> Generator[simpy.Event, None, None]:
        for move in self._inputs.moves:
            yield self._until(move.now)
            if move.transfer not in self._desk.moving:
                self.comparison.part(None, f"the end of transfer {move.transfer}", "no such one")
                return
            self._desk.transfer_done(move.transfer, move.started, move.ended, ok=move.ok)
            self._wanted |= self._desk.can_plan

    def _wakes(self) -> Generator[simpy.Event, None, None]:
        for now in self._inputs.wakes:
            yield self._until(now)
            if not self._wanted:
                self.comparison.part(None, f"a boundary at {now}", "no input that asks for one")
                return
            self._wanted = False
            self._take_in(self._desk.plan())

    def _steps(self) -> Generator[simpy.Event, None, None]:
        for step in self._inputs.steps:
            yield self._until(step.now)
            if not self._desk.open_plans:
                self.comparison.part(None, f"a commit of step {step.step}", "no plan is open")
                return
            self._wanted = False
            plan = self._desk.open_plans[0]
            sampling = plan.sampling
            sequences = dict(zip(sampling.tolist(), self._rows.of(sampling), strict=True))
            results = self._results(plan, list(sequences.values()), step)
            outcome, plans = self._desk.commit(results, step.started, step.ended)
            for row in outcome.rows.tolist():
                sequence = sequences[row]
                self._generated[sequence] = self._generated.get(sequence, 0) + 1
            self._take_in(plans)

    def _take_in(self, plans: list[Plan]) -> None:
        self._desk.take_transfers()
        for plan in plans:
            self._rows.take_in(plan)

    def _results(self, plan: Plan, sequences: list[Sequence], step: Commit) -> Results | StepFailed:
        """Every sampling row goes on, but where its answer is known to end with this token, or its sample failed."""
        if step.failed is not None:
            return StepFailed(step.failed)
        failed = self._inputs.failures.get(step.step, ())
        stops = np.zeros(len(sequences), np.int8)
        tokens = np.zeros(len(sequences), np.int32)
        positions = plan.sampled_positions.tolist()
        for index, (sequence, position) in enumerate(zip(sequences, positions, strict=True)):
            tokens[index] = self._inputs.blocks.get(sequence, {}).get(position, 0)
            if sequence in failed:
                stops[index] = Finish.FAILED
            elif self._generated.get(sequence, 0) + 1 == self._inputs.answers.get(sequence):
                stops[index] = Finish.STOP
        return Results(plan.sampling, tokens, stops, self._parents(plan, sequences))

    def _parents(self, plan: Plan, sequences: list[Sequence]) -> I32 | None:
        """Whose history each hypothesis of a beam goes on with."""
        parents = plan.sampling.copy()
        row_of = dict(zip(sequences, plan.sampling.tolist(), strict=True))
        positions = plan.sampled_positions.tolist()
        for at, (sequence, position) in enumerate(zip(sequences, positions, strict=True)):
            other = self._inputs.parents.get(sequence, {}).get(position)
            if other is not None:
                parents[at] = row_of[sequence[0], other]
        return None if np.array_equal(parents, plan.sampling) else parents


def _heard(commit: Commit) -> Commit:
    """Without what the core does not listen to where it discards the result, and what else shows in its decisions: where answers
    stopped, and whose history each hypothesis goes on with. It listens to every failure.
    """
    failures = tuple(stop for stop in commit.stops if stop[1] == Finish.FAILED)
    return msgspec.structs.replace(commit, stops=failures, parents=())
