"""What happened to each request, as lines of text with the step and the time of each, and what happened in each step.

Told of calls and decisions in their order. Knows records; knows no core, no frames and no files.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from engine.core.config import CoreConfig
from engine.core.journal import Submit
from engine.core.log import (
    Admitted,
    Copied,
    Ended,
    Evicted,
    Forked,
    Grew,
    Preempted,
    Record,
    Released,
    Reparented,
    SwapEnded,
    SwapStarted,
    Uncopied,
)
from engine.core.plan import Finish
from traces.inspector.why import Before, why
from traces.report import numbers

MOST_NOTES: Final = 40
"""Most lines about one step."""
_ENDS: Final = {
    Finish.LENGTH: "reached its length",
    Finish.STOP: "met a stop",
    Finish.FAILED: "failed",
    Finish.ABORTED: "was aborted",
    Finish.DEADLINE: "missed its deadline",
}


class Story(Struct):
    """One request."""

    request: int
    prompt: int
    arrived: int
    """ns"""
    sequences: int
    priority: int
    tenant: int
    out: int = 0
    """Tokens accepted, of all its sequences."""
    first: int = -1
    """When its first token was there, ns; -1: never."""
    ended: int = -1
    """When it ended, ns; -1: it had not when the recording ended."""
    end: str = ""
    preemptions: int = 0
    swaps: int = 0
    lines: list[tuple[int, int, str, str]] = field(default_factory=list)
    """(plan that was made next or with it, ns, kind, text), in order."""


class Stories:
    """All requests of a recording."""

    def __init__(self, config: CoreConfig) -> None:
        self.of: dict[int, Story] = {}
        self._config = config
        self._rows: dict[int, int] = {}
        self._left: dict[int, int] = {}
        """Sequences of each request that have not ended."""
        self._off: dict[int, str] = {}
        """Preempted requests: recompute, or swap."""
        self._notes: list[str] = []

    @property
    def ranks(self) -> dict[int, tuple[int, int]]:
        """(class, place in the order of arrival) of each request, by which the core tells who gives way; `fcfs` knows no classes."""
        ranked = self._config.scheduler.policy != "fcfs"
        return {
            request: (story.priority if ranked else 0, at)
            for at, (request, story) in enumerate(self.of.items())
        }

    def submitted(self, call: Submit, step: int) -> None:
        """A request arrived, before plan `step`."""
        story = Story(
            call.request, call.num_prompt, call.now, call.num_sequences, call.priority, call.tenant
        )
        self.of[call.request] = story
        self._left[call.request] = call.num_sequences
        several = f", for {call.num_sequences} sequences" if call.num_sequences > 1 else ""
        ranked = self._config.scheduler.policy != "fcfs"
        line = f", in class {call.priority}, of tenant {call.tenant}" if ranked else ""
        limit = "" if call.max_tokens is None else f", at most {call.max_tokens:,} to generate"
        self._tell(
            call.request, step, call.now, "arrive",
            f"Arrived with a prompt of {numbers.counted(call.num_prompt, 'token')}{limit}{several}{line}.",
        )  # fmt: skip
        if call.rejected is not None:
            story.ended, story.end = call.now, f"rejected: {call.rejected}"
            self._tell(call.request, step, call.now, "end", f"Rejected: {call.rejected}.")

    def accepted(self, requests: Iterable[int], step: int, now: int) -> None:
        """Each of `requests` got a token; the results were there at `now`."""
        for request in requests:
            story = self.of[request]
            story.out += 1
            if story.first < 0:
                story.first = now
                took = (now - story.arrived) / 1e6
                text = f"First token, {took:,.1f} ms after it arrived."
                self._tell(request, step, now, "first", text)

    def decided(
        self, records: Iterable[Record], step: int, now: int, before: Before | None
    ) -> None:
        """Decisions of one call; `before` is needed where one of them preempts."""
        gone: list[int] = []
        for record in records:
            if isinstance(record, Preempted):
                assert before is not None
                self._preempted(record, step, now, before, gone)
                gone.append(record.request)
            else:
                self._decided(record, step, now)

    def take_notes(self) -> list[str]:
        """What happened since the last take, a line each, bounded."""
        notes, self._notes = self._notes, []
        if len(notes) > MOST_NOTES:
            more = len(notes) - MOST_NOTES
            notes[MOST_NOTES:] = [f"and {more:,} more"]
        return notes

    def _decided(self, record: Record, step: int, now: int) -> None:
        match record:
            case Admitted():
                self._rows[record.row] = record.request
                self._admitted(record, step, now)
            case Forked():
                for row in record.children:
                    self._rows[row] = self._rows[record.row]
            case Copied():
                request = self._rows[record.row]
                text = f"Copy-on-write: frame {record.source} to {record.target}."
                self._tell(request, step, now, "copy", text)
            case Evicted():
                count = len(record.blocks)
                which = f"frame {record.blocks[0]}" if count == 1 else f"{count:,} frames"
                self._notes.append(f"Evicted {which}, to make room.")
            case SwapStarted():
                blocks = f"{record.num_blocks:,} block{'' if record.num_blocks == 1 else 's'}"
                way = "out to" if record.direction == "out" else "back from"
                self.of[record.request].swaps += record.direction == "out"
                self._tell(record.request, step, now, "swap", f"{blocks} move {way} the host.")
            case SwapEnded():
                self._swapped(record, step, now)
            case Ended():
                self._ended(record, step, now)
            case Grew() | Released() | Reparented() | Uncopied():
                pass  # the map shows these

    def _admitted(self, record: Admitted, step: int, now: int) -> None:
        blocks, found = len(record.blocks), record.shared
        given = f"{blocks:,} block{'' if blocks == 1 else 's'}"
        hits = f", {found:,} of them found in the cache or shared" if found else ""
        off = self._off.get(record.request)
        if off == "swap":
            text = f"Comes back: {given}{hits}."
        elif off == "recompute":
            text = f"Resumed, to be computed again: {given}{hits}."
        else:
            waited = (now - self.of[record.request].arrived) / 1e6
            text = f"Admitted after {waited:,.1f} ms: {given}{hits}."
        lines = self.of[record.request].lines
        if lines and lines[-1][0] == step and lines[-1][2] == "admit":
            return  # further sequences of the group
        self._tell(record.request, step, now, "admit", text)

    def _preempted(
        self, record: Preempted, step: int, now: int, before: Before, gone: list[int]
    ) -> None:
        self._off[record.request] = record.mode
        self.of[record.request].preemptions += 1
        text = why(record, before, gone, self._config)
        self.of[record.request].lines.append((step, now, "preempt", text))
        asking = "itself" if record.asking == record.request else f"request {record.asking}"
        self._notes.append(
            f"Request {record.request}: preempted by {record.mode}, for {asking} to grow."
        )

    def _swapped(self, record: SwapEnded, step: int, now: int) -> None:
        if record.transfer < 0:
            text = "The swap was refused: the host had no room, or nothing worth keeping was computed. It is computed again."
            self._off[record.request] = "recompute"
        elif record.ok:
            text = "The transfer is done."
        else:
            text = "The transfer failed: what it moved is computed again."
            self._off[record.request] = "recompute"
        self._tell(record.request, step, now, "swap", text)

    def _ended(self, record: Ended, step: int, now: int) -> None:
        story = self.of[record.request]
        how = _ENDS[Finish(record.reason)]
        self._left[record.request] -= 1 if record.index >= 0 else self._left[record.request]
        if self._left[record.request] > 0:
            self._tell(record.request, step, now, "end", f"Sequence {record.index} {how}.")
            return
        story.ended, story.end = now, how
        took = (now - story.arrived) / 1e9
        text = f"It {how}, {took:,.3f} s after it arrived, with {numbers.counted(story.out, 'token')} out."
        self._tell(record.request, step, now, "end", text)

    def _tell(self, request: int, step: int, now: int, kind: str, text: str) -> None:
        self.of[request].lines.append((step, now, kind, text))
        self._notes.append(f"Request {request}: {text[0].lower()}{text[1:]}")
