"""Reader of recordings as workloads: when each request came, what its prompt shares, and how many tokens it was given in the end.

A recording says what was called and decided, not how long each answer was, so the calls are made again on a fresh core. A request is
yielded once it and all before it have ended; memory holds those. What was open at the end, and what was aborted, counts with the tokens that it
had, at least 1; a request of several answers is one of the longest; one that was rejected asks for what it asked. Knows recordings; knows no clock.
"""

from array import array
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct

from engine.core.errors import InvariantError
from engine.core.journal import Abort, Call, Commit, Expire, Submit
from engine.core.plan import Outcome, Plan
from traces.lines import Lines
from traces.recording import VERSION, End, Header, Line
from traces.rerun import Rerun, Sequence
from traces.schema import NO_HASHES, BadRow, Row, TraceRequest

_CUT: Final = "requests that were open count with what they had"
_PARTED: Final = f"from here on this program decides otherwise than the one that recorded; {_CUT}"


class _Pending(Struct):
    """A request that is not yielded yet."""

    line: int
    call: Submit
    hash_ids: "array[int]"
    generated: dict[int, int]
    """Tokens by sequence."""
    ended: bool

    def row(self) -> TraceRequest:
        """As a workload has it."""
        call = self.call
        output = max(self.generated.values(), default=1)
        if call.rejected is not None:
            output = call.max_tokens or 1
        return TraceRequest(self.line, call.now, call.num_prompt, output, self.hash_ids)


class _Counting(Rerun):
    """Makes recorded calls again and counts what comes of each request."""

    def __init__(self, header: Header) -> None:
        super().__init__(header.config, header.hash_block_tokens)
        self.scheduler.keep_log(keep=False)
        self.waiting: deque[_Pending] = deque()
        """In order of arrival."""
        self._pending: dict[int, _Pending] = {}
        self._ids: dict[tuple[int, int], int] = {}
        """(salt, recorded id) to the id here: equal content under other salts is never shared."""

    def count(self, line: int, call: Call) -> bool:
        """Makes the call; whether it went as recorded."""
        if isinstance(call, Submit):
            pending = _Pending(line, call, self._hashes(call), {}, call.rejected is not None)
            self.waiting.append(pending)
            if not pending.ended:
                self._pending[call.request] = pending
        if self.make(call) != call:
            return False
        if isinstance(call, Expire):
            for request in call.expired:
                self._pending.pop(request).ended = True
        elif isinstance(call, Abort) and call.ended:
            self._pending.pop(call.request).ended = True
        return True

    def take(self) -> Iterator[TraceRequest]:
        """The requests that can be yielded."""
        while self.waiting and self.waiting[0].ended:
            yield self.waiting.popleft().row()

    def committed(
        self, call: Commit, plan: Plan, outcome: Outcome, sequences: dict[int, Sequence]
    ) -> None:
        """Counts the tokens that were accepted."""
        for row in outcome.rows.tolist():
            request, index = sequences[row]
            generated = self._pending[request].generated
            generated[index] = generated.get(index, 0) + 1
        for request in outcome.closed:
            self._pending.pop(request).ended = True

    def _hashes(self, call: Submit) -> "array[int]":
        if not call.content:
            return NO_HASHES
        ids = self._ids
        return array("q", [ids.setdefault((call.salt, i), len(ids)) for i in call.content])


def read_recording(lines: Lines, header: Header) -> Iterator[Row]:
    """Yields the requests of a recording in order of arrival; its header is known, and stands in `lines` too."""
    decoder = msgspec.json.Decoder(Line)
    counting = _Counting(header)
    bad: BadRow | None = None
    expected, closed = 0, False
    for number, text in lines:
        try:
            line = decoder.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            bad = BadRow(number, "bad_row", f"not a line of a recording: {error}; {_CUT}")
            break
        closed = isinstance(line, End)
        if not isinstance(line, Call):
            continue
        if line.call != expected:
            message = f"call {line.call} stands where call {expected} should; {_CUT}"
            bad = BadRow(number, "bad_row", message)
            break
        expected += 1
        try:
            as_recorded = counting.count(number, line)
        except (InvariantError, ValueError, IndexError, KeyError):
            as_recorded = False
        if not as_recorded:
            bad = BadRow(number, "bad_row", _PARTED)
            break
        yield from counting.take()
    if bad is None and not closed and lines.damage is None:
        message = f"the recording was cut short here; {_CUT}"
        bad = BadRow(lines.number + 1, "damaged_file", message)
    yield from (pending.row() for pending in counting.waiting)
    if bad is not None:
        yield bad


def version_message(header: Header) -> str | None:
    """Why a recording with this header cannot be read; None where it can."""
    if header.version == VERSION:
        return None
    return f"the recording has version {header.version}; this program reads version {VERSION}"
