"""Goes through a recording on a fresh core, and stops at every plan: what the pool looks like there, by numbers and as a delta.

A moment is the state just after a plan was made; the last one is the state at the recording's end. Knows recordings and the core;
knows no pages.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from engine.core.errors import InvariantError, TraceError
from engine.core.frames import FrameMap
from engine.core.journal import Commit, Schedule, Submit
from engine.core.log import Preempted
from engine.core.plan import Outcome, Plan
from traces.inspector.stories import Stories
from traces.inspector.why import Before, running
from traces.recording import Entry, Header, RecordingReader
from traces.rerun import Rerun, Sequence
from traces.viewer.delta import MAX_EVENTS, Delta, delta, events_of, whole

MOST_MOMENTS: Final = 100_000
"""A longer recording shows every second step, or third, and so on."""


class Numbers(Struct, frozen=True, array_like=True):
    """A moment in numbers."""

    step: int
    ms: float
    """Since the recording's first call."""
    free: int
    cached: int
    held: int
    moving: int
    used_tokens: int
    allocated_tokens: int
    logical: int
    host_used: int
    running: int
    waiting: int
    swapped: int
    rows: int
    """Of the plan that was just made."""
    tokens: int


class Moment(Struct, frozen=True):
    """One stop."""

    numbers: Numbers
    frames: FrameMap
    change: Delta
    """Since the moment before."""
    notes: list[str]

    def key(self) -> Delta:
        """The whole map."""
        return whole(self.frames)


class Found(Struct):
    """What a first look at a file tells."""

    header: Header
    num_steps: int
    cut: str
    """Where reading had to stop; empty where the recording is whole."""


def look(path: Path, *, partial: bool) -> Found:
    """Reads the file once.

    Args:
        path: a recording.
        partial: take what is there of one that was cut short or damaged.

    Raises:
        TraceError: the file is no recording of this version; or it is damaged or cut short, and `partial` is not set.
    """
    with RecordingReader(path) as reader:
        found = Found(reader.header, 0, "")
        try:
            for entry in reader.entries():
                found.num_steps += isinstance(entry.call, Schedule) and entry.call.step >= 0
        except TraceError as error:
            if not partial:
                raise TraceError(
                    f"{error.reason}; --partial shows what is there",
                    file=error.file,
                    line=error.line,
                ) from error
            found.cut = f"line {error.line}: {error.reason}"
        return found


class _Watched(Rerun):
    """A core whose accepted tokens are told to the stories."""

    def __init__(self, header: Header, stories: Stories) -> None:
        super().__init__(header.config, header.hash_block_tokens)
        self.stories = stories
        self.step = 0

    def planned(self, plan: Plan) -> None:
        """The step that follows is the next one."""
        self.step = plan.step + 1

    def committed(
        self, call: Commit, plan: Plan, outcome: Outcome, sequences: dict[int, Sequence]
    ) -> None:
        """Tokens arrive."""
        self.stories.accepted(outcome.requests.tolist(), self.step, call.ended)


class Walk:
    """One pass through a recording."""

    def __init__(self, path: Path, found: Found) -> None:
        self.stories = Stories(found.header.config)
        self.every = max(1, -(-(found.num_steps + 1) // MOST_MOMENTS))
        self._path = path
        self._found = found
        self._core = _Watched(found.header, self.stories)
        self._events: list[list[int | str]] = []
        self.start: int | None = None
        """When the first call was made, ns."""
        self._now = 0
        self._last: FrameMap | None = None

    def moments(self, watch: Callable[[int], None] = lambda step: None) -> Iterator[Moment]:
        """Every moment, in order; `watch` is told each step.

        Raises:
            TraceError: the recording does not follow from its own calls.
        """
        plan: Schedule | None = None
        for entry in self._entries():
            if self.start is None:
                self.start = entry.call.now
            self._make(entry)
            if isinstance(entry.call, Schedule) and entry.call.step >= 0:
                plan = entry.call
                watch(plan.step)
                if plan.step % self.every == 0:
                    yield self._stop(plan)
                    plan = None
        yield self._stop(plan)

    def _entries(self) -> Iterator[Entry]:
        with RecordingReader(self._path) as reader:
            try:
                yield from reader.entries()
            except TraceError:
                if not self._found.cut:
                    raise

    def _make(self, entry: Entry) -> None:
        core, call, step = self._core, entry.call, self._core.step
        before = None
        if any(isinstance(record, Preempted) for record in entry.decisions):
            statuses = core.scheduler.statuses()
            ran = running({int(r): s for r, s in statuses.items()}, self.stories.ranks)
            before = Before(core.scheduler.memory(), ran)
        if isinstance(call, Submit):
            self.stories.submitted(call, step)
        try:
            made = core.make(call)
        except (ValueError, IndexError, KeyError, InvariantError) as error:
            raise self._differs(entry) from error
        records = core.take_log()
        if made != call or tuple(records) != entry.decisions:
            raise self._differs(entry)
        self.stories.decided(records, step, call.now, before)
        self._events += events_of(records)
        self._now = call.now

    def _differs(self, entry: Entry) -> TraceError:
        return TraceError(
            "the recording does not follow from its own calls here; `kilburn replay FILE --lockstep` shows the difference",
            file=str(self._path),
            line=entry.line,
        )

    def _stop(self, plan: Schedule | None) -> Moment:
        core = self._core.scheduler
        frames, memory = core.frames(), core.memory()
        events, self._events = self._events[-MAX_EVENTS:], []
        change = whole(frames) if self._last is None else delta(self._last, frames, events)
        self._last = frames
        numbers = Numbers(
            self._core.step - 1,
            round((self._now - (self.start or 0)) / 1e6, 3),
            memory.free_blocks,
            memory.cached_blocks,
            memory.held_blocks,
            memory.moving_blocks,
            memory.used_tokens,
            memory.allocated_tokens,
            memory.logical_blocks,
            memory.host_used_blocks,
            memory.num_running,
            memory.num_waiting,
            memory.num_swapped,
            plan.num_rows if plan else 0,
            plan.num_tokens if plan else 0,
        )
        return Moment(numbers, frames, change, self.stories.take_notes())
