"""Makes the recorded calls again on a fresh core, and learns from them what the twin is to be told.

The recorded calls must give the same answers and decisions. Content is rebuilt from its aliases: tokens that are equal exactly where
the recorded ones were, block by block. Knows recordings and the core; knows no clock, no tokens of clients and no torch.
"""

from collections import deque
from pathlib import Path
from typing import Protocol, assert_never

import numpy as np
from msgspec import Struct

from engine.core import journal
from engine.core.aliases import PlainAliases, replayed_tokens
from engine.core.arrays import I32
from engine.core.config import CoreConfig
from engine.core.content import TokenContent
from engine.core.errors import InvariantError
from engine.core.ids import RequestId, TimeNs
from engine.core.journal import Abort, Call, Commit, Expire, Schedule, Submit, Transferred
from engine.core.log import Record
from engine.core.plan import (
    Blocked,
    Finish,
    Idle,
    Outcome,
    Plan,
    Request,
    Results,
    StepFailed,
    Transfer,
)
from engine.core.scheduler import Scheduler
from sim.verdict import Comparison, Verdict
from traces.recording import RecordingReader

Sequence = tuple[int, int]
"""(request, index of the sequence in it)"""


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
    answers: dict[Sequence, tuple[int, Finish]] = {}
    """(generated tokens, reason), where a stop or a failure of the model ended a sequence."""
    blocks: dict[Sequence, dict[int, int]] = {}
    """What the model said, as far as the core can tell: position to id, of generated tokens that completed a block."""
    parents: dict[Sequence, dict[int, int]] = {}
    """Beam search: position of an accepted token to the index of the sequence whose history it continues."""


class Rows:
    """Whose row is whose."""

    def __init__(self) -> None:
        self._sequences: dict[int, Sequence] = {}

    def take_in(self, plan: Plan) -> None:
        """Rows change hands with plans; what older plans sampled must have been looked up before."""
        for request, index, row in plan.admitted:
            self._sequences[row] = (request, index)

    def of(self, rows: I32) -> list[Sequence]:
        """The sequences of `rows`."""
        return [self._sequences[row] for row in rows.tolist()]


class Witness(Protocol):
    """Who is told the plans as they are made again."""

    def planned(self, plan: Plan, call: Schedule) -> None:
        """`call` gave `plan`."""
        ...

    def committed(self, call: Commit) -> None:
        """The oldest open plan was committed by `call`."""
        ...


def check_journal(path: Path, witness: Witness | None = None) -> tuple[Inputs, Verdict]:
    """Makes the recorded calls again; what the twin is to be told, and the verdict.

    Raises:
        TraceError: the file is no recording, or is damaged.
    """
    comparison = Comparison()
    with RecordingReader(path) as reader:
        replay = _Journal(reader.header.config, witness)
        for entry in reader.entries():
            try:
                call = replay.make(entry.call)
            except (ValueError, IndexError, KeyError, InvariantError) as error:
                comparison.part(entry.line, repr(entry.call), f"refused: {error}")
                break
            if not comparison.equal(entry, call, replay.take_log()):
                break
    return replay.inputs, comparison.verdict()


class _Journal:
    """A fresh core, to which recorded calls are made."""

    def __init__(self, config: CoreConfig, witness: Witness | None) -> None:
        self.inputs = Inputs()
        self._witness = witness
        self._scheduler = Scheduler(config)
        self._block_size = config.memory.block_size
        self._aliases = PlainAliases(config.memory.block_size)
        self._open: deque[Plan] = deque()
        self._moving: dict[int, Transfer] = {}
        self._rows = Rows()
        self._generated: dict[Sequence, int] = {}
        self._last_commit = -1

    def make(self, call: Call) -> Call:
        """Makes the call; its record as made now."""
        now, core, aliases = TimeNs(call.now), self._scheduler, self._aliases
        match call:
            case Submit():
                request = self._request(call)
                self.inputs.arrivals.append((now, request))
                answer = core.submit(request, now)
                return journal.submitted(call.call, now, request, answer, aliases)
            case Abort():
                request_id = RequestId(call.request)
                self.inputs.aborts.append((now, request_id))
                ended = core.abort(request_id, now)
                return journal.aborted(call.call, now, request_id, ended, aliases)
            case Expire():
                self.inputs.expiries.append(now)
                return journal.expired(call.call, now, core.expire(now), aliases)
            case Schedule():
                made = core.schedule(now)
                self._take_in(made)
                if self._witness is not None and isinstance(made, Plan):
                    self._witness.planned(made, call)
                if now != self._last_commit and self.inputs.wakes[-1:] != [now]:
                    self.inputs.wakes.append(now)
                return journal.scheduled(call.call, now, made, aliases)
            case Commit():
                if self._witness is not None:
                    self._witness.committed(call)
                return self._commit(call, now)
            case Transferred():
                core.transfer_done(call.transfer, call.ok, now)
                self.inputs.moves.append(call)
                transfer = self._moving.pop(call.transfer)
                return journal.transferred(
                    call.call, now, transfer, call.ok, call.started, call.ended
                )
        assert_never(call)

    def take_log(self) -> list[Record]:
        """Decisions since the last take."""
        return self._scheduler.take_log()

    def _request(self, call: Submit) -> Request:
        content = None
        if call.content is not None:
            tokens = replayed_tokens(call.num_prompt, self._block_size, call.content)
            content = TokenContent(tokens)
        return Request(
            id=RequestId(call.request),
            num_prompt=call.num_prompt,
            max_tokens=call.max_tokens,
            num_sequences=call.num_sequences,
            content=content,
            salt=str(call.salt),
            tenant=str(call.tenant),
            weight=call.weight,
            priority=call.priority,
            deadline=None if call.deadline is None else TimeNs(call.deadline),
            beam=call.beam,
        )

    def _take_in(self, answer: Plan | Idle | Blocked) -> None:
        if isinstance(answer, Plan):
            self._open.append(answer)
            self._rows.take_in(answer)
        for transfer in self._scheduler.take_transfers():
            self._moving[transfer.id] = transfer

    def _commit(self, call: Commit, now: TimeNs) -> Call:
        plan = self._open.popleft()
        sampling = plan.sampling
        sequences = dict(zip(sampling.tolist(), self._rows.of(sampling), strict=True))
        results: Results | StepFailed
        if call.failed is not None:
            results = StepFailed(call.failed)
        else:
            stops = np.zeros(len(sampling), np.int8)
            tokens = np.zeros(len(sampling), np.int32)
            for index, reason in call.stops:
                stops[index] = reason
            positions = plan.sampled_positions.tolist()
            for index, name in call.blocks:
                tokens[index] = name
                known = self.inputs.blocks.setdefault(sequences[int(sampling[index])], {})
                known[positions[index]] = name
            parents = sampling.copy() if call.parents else None
            for index, other in call.parents:
                assert parents is not None
                parents[index] = sampling[other]
            results = Results(sampling, tokens, stops, parents)
        outcome = self._scheduler.commit(plan, results, now)
        self._last_commit = now
        self.inputs.steps.append(call)
        if call.failed is None:
            self._learn_answers(outcome, sequences)
            accepted = set(outcome.rows.tolist())
            for index, other in call.parents:
                if int(sampling[index]) in accepted:
                    known = self.inputs.parents.setdefault(sequences[int(sampling[index])], {})
                    known[int(plan.sampled_positions[index])] = sequences[int(sampling[other])][1]
        return journal.committed(
            call.call, now, plan, results, outcome, call.started, call.ended, self._aliases
        )

    def _learn_answers(self, outcome: Outcome, sequences: dict[int, Sequence]) -> None:
        for row in outcome.rows.tolist():
            sequence = sequences[row]
            self._generated[sequence] = self._generated.get(sequence, 0) + 1
        for row, reason in zip(outcome.ended_rows.tolist(), outcome.reasons.tolist(), strict=True):
            generated = self._generated.pop(sequences[row], 0)
            if reason != Finish.LENGTH:
                self.inputs.answers[sequences[row]] = (generated, Finish(reason))
