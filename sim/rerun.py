"""Makes the recorded calls again, and learns from them what the twin is to be told.

Knows recordings and the core; knows no clock, no tokens of clients and no torch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from engine.core.config import CoreConfig
from engine.core.errors import InvariantError
from engine.core.ids import RequestId, TimeNs
from engine.core.journal import Abort, Call, Commit, Expire, Schedule, Transferred
from engine.core.plan import Finish, Outcome, Plan, Request
from sim.verdict import Comparison, Verdict
from traces.recording import RecordingReader
from traces.rerun import Rerun, Sequence

R = TypeVar("R", bound=Rerun)


class Inputs(Struct):
    """What the twin is told of a run: nothing that the core decided."""

    arrivals: list[tuple[int, Request]] = []
    aborts: list[tuple[int, RequestId]] = []
    expiries: list[int] = []
    """When the live loop got round to a timer."""
    steps: list[Commit] = []
    """When each step began, ended and was committed, and whether it failed as a whole."""
    moves: list[Transferred] = []
    """When each transfer began, ended and was taken in, and whether it failed."""
    wakes: list[int] = []
    """Boundaries that followed an input and no step."""
    answers: dict[Sequence, int] = {}
    """Generated tokens of the sequences that a stop ended."""
    failures: dict[int, set[Sequence]] = {}
    """By step: whose sample failed. By step and not by length, since the core listens also where it discards the result, and what
    was sampled once and discarded is sampled again, with other luck."""
    blocks: dict[Sequence, dict[int, int]] = {}
    """What the model said, as far as the core can tell: position to id, of generated tokens that completed a block."""
    parents: dict[Sequence, dict[int, int]] = {}
    """Beam search: position of an accepted token to the index of the sequence whose history it continues."""


def check_journal(path: Path) -> tuple[Inputs, Verdict]:
    """Makes the recorded calls again; what the twin is to be told, and the verdict.

    Raises:
        TraceError: the file is no recording, or is damaged.
    """
    replay, verdict = follow(path, _Journal)
    return replay.inputs, verdict


def follow(path: Path, start: Callable[[CoreConfig, int], R]) -> tuple[R, Verdict]:
    """Makes the recorded calls again, up to the first that has another answer; who made them, and the verdict.

    Raises:
        TraceError: the file is no recording, or is damaged.
    """
    comparison = Comparison()
    with RecordingReader(path) as reader:
        replay = start(reader.header.config, reader.header.hash_block_tokens)
        for entry in reader.entries():
            try:
                call = replay.make(entry.call)
            except (ValueError, IndexError, KeyError, InvariantError) as error:
                comparison.part(entry.line, repr(entry.call), f"refused: {error}")
                break
            if not comparison.equal(entry, call, replay.take_log()):
                break
    return replay, comparison.verdict()


class _Journal(Rerun):
    """A fresh core, to which recorded calls are made, and what the twin is to be told of them."""

    def __init__(self, config: CoreConfig, hash_block_tokens: int) -> None:
        super().__init__(config, hash_block_tokens)
        self.inputs = Inputs()
        self._generated: dict[Sequence, int] = {}
        self._last_commit = -1

    def make(self, call: Call) -> Call:
        """Makes the call; its record as made now."""
        made, inputs = super().make(call), self.inputs
        match call:
            case Abort():
                inputs.aborts.append((call.now, RequestId(call.request)))
            case Expire():
                inputs.expiries.append(call.now)
            case Schedule():
                if call.now != self._last_commit and inputs.wakes[-1:] != [call.now]:
                    inputs.wakes.append(call.now)
            case Transferred():
                inputs.moves.append(call)
            case _:
                pass
        return made

    def submitting(self, request: Request, now: TimeNs) -> None:
        """An arrival."""
        self.inputs.arrivals.append((now, request))

    def committed(
        self, call: Commit, plan: Plan, outcome: Outcome, sequences: dict[int, Sequence]
    ) -> None:
        """What the step told of the model."""
        self._last_commit = call.now
        self.inputs.steps.append(call)
        if call.failed is not None:
            return
        sampling, positions = plan.sampling.tolist(), plan.sampled_positions.tolist()
        failed = {sequences[sampling[at]] for at, reason in call.stops if reason == Finish.FAILED}
        if failed:
            self.inputs.failures[call.step] = failed
        for index, name in call.blocks:
            known = self.inputs.blocks.setdefault(sequences[sampling[index]], {})
            known[positions[index]] = name
        accepted = set(outcome.rows.tolist())
        self._learn_answers(outcome, sequences)
        for index, other in call.parents:
            if sampling[index] in accepted:
                known = self.inputs.parents.setdefault(sequences[sampling[index]], {})
                known[positions[index]] = sequences[sampling[other]][1]

    def _learn_answers(self, outcome: Outcome, sequences: dict[int, Sequence]) -> None:
        for row in outcome.rows.tolist():
            sequence = sequences[row]
            self._generated[sequence] = self._generated.get(sequence, 0) + 1
        for row, reason in zip(outcome.ended_rows.tolist(), outcome.reasons.tolist(), strict=True):
            generated = self._generated.pop(sequences[row], 0)
            if reason == Finish.STOP:
                self.inputs.answers[sequences[row]] = generated
