"""The steps of a recording as a cost model sees them: what each computed, and how long it took. Knows no fit.

A step's time runs from when it could begin, its plan being made and the step before it over, to its end: what the host needs between two
steps is part of it. How late the live loop took the results in is told apart.
"""

from pathlib import Path

from msgspec import Struct

from engine.core.config import CoreConfig
from engine.core.errors import TraceError
from engine.core.journal import Call, Commit
from engine.core.plan import Outcome, Plan
from sim.cost import StepWork, work_of
from sim.rerun import follow
from traces.rerun import Rerun, Sequence


class RecordedStep(Struct, frozen=True):
    """One step that did not fail."""

    work: StepWork
    ns: int
    """From when it could begin to its end."""
    lag_ns: int
    """From its end to its commit."""


class _Steps(Rerun):
    """Gathers steps while the calls are made again."""

    def __init__(self, config: CoreConfig, hash_block_tokens: int) -> None:
        super().__init__(config, hash_block_tokens)
        self.steps: list[RecordedStep] = []
        self._planned: dict[int, tuple[StepWork, int]] = {}
        self._now = 0
        self._last_end = 0

    def make(self, call: Call) -> Call:
        self._now = call.now
        return super().make(call)

    def planned(self, plan: Plan) -> None:
        self._planned[plan.step] = work_of(plan), self._now

    def committed(
        self, call: Commit, plan: Plan, outcome: Outcome, sequences: dict[int, Sequence]
    ) -> None:
        work, planned = self._planned.pop(plan.step)
        begin = max(planned, self._last_end)
        self._last_end = call.ended
        if call.failed is None:
            self.steps.append(RecordedStep(work, call.ended - begin, call.now - call.ended))


def read_steps(path: Path) -> list[RecordedStep]:
    """Every step of the recording, in order.

    Raises:
        TraceError: the file is no recording, is damaged, does not follow from its calls, or has no step.
    """
    replay, verdict = follow(path, _Steps)
    if verdict.difference is not None:
        raise TraceError(
            "the recorded calls do not give the recorded decisions, so its steps cannot be known; "
            "see --lockstep",
            file=str(path),
            line=verdict.difference.line,
        )
    if not replay.steps:
        raise TraceError("the recording has no step to learn from", file=str(path))
    return replay.steps
