"""What a replay found: equal calls and decisions, counted, up to the first difference. Knows records; knows no core and no files."""

from itertools import zip_longest

from msgspec import Struct

from engine.core.journal import Call
from engine.core.log import Record
from traces.recording import Entry


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


class Comparison:
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
