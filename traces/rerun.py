"""Makes the recorded calls again on a fresh core. The recorded calls must give the same answers and decisions.

Content is rebuilt from its aliases: tokens that are equal exactly where the recorded ones were, block by block. Knows recordings
and the core; knows no clock and no tokens of clients.
"""

from collections import deque
from typing import assert_never

import numpy as np

from engine.core import journal
from engine.core.aliases import PlainAliases, replayed_tokens
from engine.core.arrays import I32
from engine.core.config import CoreConfig
from engine.core.content import Content, TokenContent, TraceContent
from engine.core.ids import RequestId, TimeNs
from engine.core.journal import Abort, Call, Commit, Expire, Schedule, Submit, Transferred
from engine.core.log import Record
from engine.core.plan import (
    Blocked,
    Idle,
    Outcome,
    Plan,
    Request,
    Results,
    StepFailed,
    Transfer,
)
from engine.core.scheduler import Scheduler

Sequence = tuple[int, int]
"""(request, index of the sequence in it)"""


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


class Rerun:
    """A fresh core, to which recorded calls are made. Subclasses are told of what passes."""

    def __init__(self, config: CoreConfig, hash_block_tokens: int = 0) -> None:
        """Both as the recording's header has them."""
        self.scheduler = Scheduler(config)
        self.moving: dict[int, Transfer] = {}
        self._block_size = config.memory.block_size
        self._hash_block_tokens = hash_block_tokens
        self._aliases = PlainAliases(config.memory.block_size)
        self._open: deque[Plan] = deque()
        self._rows = Rows()

    def make(self, call: Call) -> Call:
        """Makes the call; its record as made now.

        Raises:
            ValueError, IndexError, KeyError, InvariantError: no core would have got this call.
        """
        now, core, aliases = TimeNs(call.now), self.scheduler, self._aliases
        match call:
            case Submit():
                request = self.request(call)
                self.submitting(request, now)
                answer = core.submit(request, now)
                return journal.submitted(call.call, now, request, answer, aliases)
            case Abort():
                request_id = RequestId(call.request)
                ended = core.abort(request_id, now)
                return journal.aborted(call.call, now, request_id, ended, aliases)
            case Expire():
                return journal.expired(call.call, now, core.expire(now), aliases)
            case Schedule():
                made = core.schedule(now)
                self._take_in(made)
                return journal.scheduled(call.call, now, made, aliases)
            case Commit():
                return self._commit(call, now)
            case Transferred():
                core.transfer_done(call.transfer, call.ok, now)
                transfer = self.moving.pop(call.transfer)
                return journal.transferred(
                    call.call, now, transfer, call.ok, call.started, call.ended
                )
        assert_never(call)

    def take_log(self) -> list[Record]:
        """Decisions since the last take."""
        return self.scheduler.take_log()

    def submitting(self, request: Request, now: TimeNs) -> None:
        """`request` is about to be submitted."""

    def planned(self, plan: Plan) -> None:
        """`plan` was opened."""

    def committed(
        self, call: Commit, plan: Plan, outcome: Outcome, sequences: dict[int, Sequence]
    ) -> None:
        """`plan` was committed; `sequences` names the rows that it sampled."""

    def request(self, call: Submit) -> Request:
        """The recorded request, with tokens that stand for its content, or with the ids of its trace."""
        content: Content | None = None
        if call.content is not None and self._hash_block_tokens:
            content = TraceContent(np.array(call.content, np.int64), self._hash_block_tokens)
        elif call.content is not None:
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
            self.planned(answer)
        for transfer in self.scheduler.take_transfers():
            self.moving[transfer.id] = transfer

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
            for index, name in call.blocks:
                tokens[index] = name
            parents = sampling.copy() if call.parents else None
            for index, other in call.parents:
                assert parents is not None
                parents[index] = sampling[other]
            results = Results(sampling, tokens, stops, parents)
        outcome = self.scheduler.commit(plan, results, now)
        self.committed(call, plan, outcome, sequences)
        return journal.committed(
            call.call, now, plan, results, outcome, call.started, call.ended, self._aliases
        )
