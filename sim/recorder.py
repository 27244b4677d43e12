"""A replay's recording: what one replica's scheduler was told and decided, in the format of the live engine's.

Calls carry stamps that rise strictly from one input or boundary to the next, as a live recording's do: what happens at one
simulated instant is a nanosecond apart. Steps are single, since a recording has no word for a leap, and keep their lengths.
Knows the scheduler and files; knows no clock and no cost.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from engine.core import journal
from engine.core.aliases import PlainAliases
from engine.core.config import CoreConfig
from engine.core.errors import ConfigError
from engine.core.ids import TimeNs
from engine.core.journal import Call
from engine.core.plan import (
    Blocked,
    Idle,
    Outcome,
    Plan,
    Rejected,
    Request,
    Results,
    StepFailed,
    Transfer,
)
from engine.core.scheduler import Scheduler
from sim.config import ReplayConfig
from traces.recording_writer import RecordingWriter

_NEVER: Final = -1


class Recording(Struct, frozen=True):
    """What is recorded, and where."""

    path: Path
    replica: int = 0
    """From 0."""


def check_recording(
    recording: Recording, settings: ReplayConfig, trace: Path | None = None
) -> None:
    """That the settings have what is to be recorded, and that it does not go over the trace.

    Raises:
        ConfigError: one of the two.
    """
    if recording.replica not in range(settings.replicas):
        have = "replica 0" if settings.replicas == 1 else f"replicas 0 to {settings.replicas - 1}"
        raise ConfigError(f"--record-replica: there is no replica {recording.replica}, only {have}")
    if settings.allocator != "paged":
        raise ConfigError(
            f"--record: only paged memory has blocks to record; leave out --allocator {settings.allocator}"
        )
    if trace is not None and recording.path.exists() and recording.path.samefile(trace):
        raise ConfigError(f"--record: {recording.path} is the trace; name another file")


@contextmanager
def recorded(
    path: Path, config: CoreConfig, model: str, hash_block_tokens: int
) -> Iterator["RecordedScheduler"]:
    """A scheduler whose calls go to `path`, until the context ends.

    Raises:
        ConfigError: the file cannot be written.
    """
    config = replace(config, scheduler=replace(config.scheduler, log=True))
    writer = RecordingWriter(
        path, config=config, model=model, hash_block_tokens=hash_block_tokens, waits=True
    )
    try:
        yield RecordedScheduler(config, writer)
    finally:
        writer.close()
    _check(writer)


def _check(writer: RecordingWriter) -> None:
    if writer.failure is not None:
        raise ConfigError(f"the recording {writer.path} cannot be written: {writer.failure}")


class RecordedScheduler(Scheduler):
    """A scheduler as a replica works it. It never leaps."""

    def __init__(self, config: CoreConfig, writer: RecordingWriter) -> None:
        super().__init__(config)
        self._writer = writer
        self._aliases = PlainAliases(config.memory.block_size)
        self._num_calls = 0
        self._stamp = TimeNs(_NEVER)
        """Of the last call."""
        self._boundary = _NEVER
        """The instant of the boundary that goes on; an input ends it."""
        self._answer: Idle | Blocked | None = None
        """What it came to, once it has no more plans."""
        self._planned: deque[tuple[int, int]] = deque()
        """(instant, stamp) at which each open plan was made."""
        self._last_end = (0, 0)
        """(instant, as recorded) of the last step's end."""
        self._moving: dict[int, tuple[Transfer, int]] = {}
        """Transfers in flight, and when each was asked for."""
        self._lanes = {True: 0, False: 0}
        """When the last transfer in each direction ended."""

    def submit(self, request: Request, now: TimeNs) -> Rejected | None:
        """As the scheduler does."""
        stamp = self._input(now)
        answer = super().submit(request, stamp)
        self._write(journal.submitted(self._num_calls, stamp, request, answer, self._aliases))
        return answer

    def schedule(self, now: TimeNs) -> Plan | Idle | Blocked:
        """As the scheduler does. Asked again at an instant at which nothing came in since, it has the same answer."""
        if self._boundary != now:
            self._boundary, self._answer = now, None
            self._rise(now)
        elif self._answer is not None:
            return self._answer
        answer = super().schedule(self._stamp)
        self._write(journal.scheduled(self._num_calls, self._stamp, answer, self._aliases))
        if isinstance(answer, Plan):
            self._planned.append((now, self._stamp))
        else:
            self._answer = answer
        return answer

    def forecast(self, plan: Plan, most: int, *, beyond_ends: bool = True) -> None:
        """None: a recording has no word for a leap."""

    def commit(self, plan: Plan, results: Results | StepFailed, now: TimeNs) -> Outcome:
        """As the scheduler does."""
        planned, planned_stamp = self._planned.popleft()
        began, began_stamp = self._last_end
        started = max(planned_stamp, began_stamp)
        ended = started + now - max(planned, began)
        self._last_end = now, ended
        self._boundary, self._answer = now, None
        stamp = self._rise(max(now, ended))
        outcome = super().commit(plan, results, stamp)
        self._write(
            journal.committed(
                self._num_calls, stamp, plan, results, outcome, started, ended, self._aliases
            )
        )
        return outcome

    def take_transfers(self) -> list[Transfer]:
        """As the scheduler does."""
        transfers = super().take_transfers()
        self._moving.update((t.id, (t, self._stamp)) for t in transfers)
        return transfers

    def transfer_done(self, number: int, ok: bool, now: TimeNs) -> None:
        """As the scheduler does. Its start is that of a link which no other replica uses."""
        stamp = self._input(now)
        super().transfer_done(number, ok, stamp)
        transfer, asked = self._moving.pop(number)
        started = max(asked, self._lanes[transfer.out])
        ended = self._lanes[transfer.out] = max(now, started)
        self._write(journal.transferred(self._num_calls, stamp, transfer, ok, started, ended))

    def _input(self, now: int) -> TimeNs:
        self._boundary = _NEVER
        return self._rise(now)

    def _rise(self, now: int) -> TimeNs:
        self._stamp = TimeNs(max(now, self._stamp + 1))
        return self._stamp

    def _write(self, call: Call) -> None:
        self._num_calls += 1
        self._writer.call(call, self.take_log())
        _check(self._writer)
