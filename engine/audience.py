"""Audience: the streams that are open, and which choice is told what is sampled in which row. Takes no decision.

Knows plans, tokens and streams; knows no scheduler and no clock. A token is decoded before its commit, so that a stop is known to
the core in time, and delivered after, if the commit accepted it.
"""

import numpy as np
from msgspec import Struct

from engine.core.errors import ExecutorError
from engine.core.ids import RequestId
from engine.core.plan import Finish, Outcome, Plan, Results, StepFailed
from engine.executor import BeamParams, NewSequence, Sampled
from engine.requests import FinishReason
from engine.streams import Choice, Stream

_REASONS = {
    Finish.LENGTH: FinishReason.LENGTH,
    Finish.STOP: FinishReason.STOP,
    Finish.FAILED: FinishReason.ERROR,
    Finish.ABORTED: FinishReason.ABORT,
    Finish.DEADLINE: FinishReason.TIMEOUT,
}


class Heard(Struct, frozen=True, eq=False):
    """What a step said, and to whom: a row may be given to another sequence before it is delivered."""

    results: Results | StepFailed
    choices: dict[int, Choice]
    """By row. Who got a token holds it until the commit has accepted or discarded it."""
    errors: dict[int, str]
    """Messages of the rows that failed."""


class Audience:
    """Open streams by request, and choices by row."""

    def __init__(self) -> None:
        self._streams: dict[RequestId, Stream] = {}
        self._choices: dict[int, Choice] = {}
        self._news: list[Stream] = []
        """Streams whose readers must be told."""

    def __len__(self) -> int:
        return len(self._streams)

    def announce(self, stream: Stream) -> None:
        """`stream` has news, which its reader learns once all is delivered."""
        self._news.append(stream)

    def add(self, stream: Stream) -> None:
        """`stream` is open."""
        self._streams[stream.request_id] = stream

    def admit(self, plan: Plan) -> list[NewSequence]:
        """Gives the sequences that the plan admits their rows; what the runner must know of them."""
        if not plan.admitted:
            return []
        new = []
        starts = dict(zip(plan.rows.tolist(), plan.starts.tolist(), strict=True))
        for request, index, row in plan.admitted:
            stream = self._streams[request]
            if index == 0:
                stream.num_cached = starts[row]
            choice = stream.choices[index]
            choice.row = row
            self._choices[row] = choice
            asked = stream.generation
            beam = BeamParams(stream.ends) if asked.beam is not None else None
            new.append(
                NewSequence(row, request, asked.prompt, asked.sampling, index, asked.salt, beam)
            )
        return new

    def hear(self, plan: Plan, sampled: Sampled) -> Heard:
        """Decodes what the step sampled for choices that have not ended meanwhile.

        Raises:
            ExecutorError: tokens are missing.
        """
        rows = plan.sampling
        if len(sampled.tokens) != len(rows):
            raise ExecutorError(
                f"step {plan.step} sampled {len(sampled.tokens)} tokens where {len(rows)} were asked for"
            )
        stops = np.zeros(len(rows), np.int8)
        errors: dict[int, str] = {}
        for index, message in sampled.failures:
            stops[index] = Finish.FAILED
            errors[int(rows[index])] = message
        choices = {}
        logprobs = dict(sampled.logprobs)
        for index, (row, token) in enumerate(
            zip(rows.tolist(), sampled.tokens.tolist(), strict=True)
        ):
            choice = self._choices.get(row)
            if choice is None:
                continue
            choices[row] = choice
            if row not in errors and choice.sampled(token, logprobs.get(index)):
                stops[index] = Finish.STOP
        for request, step in sampled.beams:
            stream = self._streams.get(request)
            if stream is not None and stream.hold(step):
                members = [row for row in (c.row for c in stream.choices) if row is not None]
                stops[np.isin(rows, members)] = Finish.STOP
        stops.flags.writeable = False
        return Heard(Results(rows, sampled.tokens, stops, sampled.parents), choices, errors)

    def hear_failure(self, message: str) -> Heard:
        """A whole step failed; the commit says whom that ends."""
        everyone = dict(self._choices)
        return Heard(StepFailed(message), everyone, dict.fromkeys(everyone, message))

    def deliver(self, outcome: Outcome, heard: Heard) -> None:
        """Delivers what the commit accepted, takes back what it discarded, and ends what it ended."""
        choices, errors = heard.choices, heard.errors
        accepted = outcome.rows.tolist()
        for row in accepted:
            choices[row].accept()
        if len(accepted) < len(choices):
            for row in choices.keys() - set(accepted) - errors.keys():
                choices[row].discard()
        for row, reason in zip(outcome.ended_rows.tolist(), outcome.reasons.tolist(), strict=True):
            choices[row].end(_REASONS[Finish(reason)], errors.get(row))
            self._let_go(choices[row])
        for request in outcome.closed:
            self._close(self._streams[request])
        self._tell()

    def end(self, request: RequestId, reason: Finish) -> None:
        """The core has ended what was left of `request`."""
        stream = self._streams[request]
        stream.end(_REASONS[reason])
        self._close(stream)
        self._tell()

    def fail_all(self, message: str) -> list[RequestId]:
        """Ends every open stream with an error; which these were."""
        streams, self._streams = self._streams, {}
        self._choices.clear()
        for stream in streams.values():
            stream.end(FinishReason.ERROR, message)
        self._tell()
        return list(streams)

    def _tell(self) -> None:
        """Readers may open and abort streams while they are told."""
        while self._news:
            news, self._news = self._news, []
            for stream in news:
                stream.tell()

    def _close(self, stream: Stream) -> None:
        """The core has closed the request: choices that never came into being share the fate of the first."""
        del self._streams[stream.request_id]
        if not stream.ended:
            first = stream.choices[0]
            assert first.finish is not None
            stream.end(first.finish, first.error)
        for choice in stream.choices:
            self._let_go(choice)

    def _let_go(self, choice: Choice) -> None:
        """`choice` is told nothing any more."""
        if choice.row is not None and self._choices.get(choice.row) is choice:
            del self._choices[choice.row]
