"""What is asked: a trace, promises, settings. Makes the simulations that inquiries ask for, each with the key of what it depends on."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from engine.core.errors import ConfigError
from sim.plan.bound import BoundFigures, least
from sim.plan.desk import Job
from sim.plan.trial import Outcome, run_trial
from sim.plan.users import Crowd, run_users
from sim.plan.windows import WindowCounts, Windows, fewest_by_window
from sim.report.figures import Resolved
from sim.sweep.axes import Files, Settings, resolve_settings
from sim.sweep.digest import file_digest, key_of
from traces.judge import Populations
from traces.report import numbers
from traces.slo import Slo


class Question(Struct, frozen=True, kw_only=True):
    """One plan."""

    trace: Path
    trace_sha256: str
    """Of the file's bytes."""
    slo: Slo
    settings: Settings
    """Of every machine, beside hardware, tensor parallelism and replicas."""
    files: Files
    strict: bool
    only_fitting: bool
    max_replicas: int
    max_users: int
    crowd: Crowd
    """Of the users' question; its number of users is what is asked for."""
    window_s: float
    seeds: int
    """Redraws of the trace; 0: no reseeding."""
    with_sensitivity: bool
    with_autoscaling: bool
    most: Populations | None = None
    """Of the trace; what is known of it lets hopeless runs be given up."""

    def machine(self, **changes: object) -> Resolved:
        """The machine of the question's settings with these changed.

        Raises:
            ConfigError: the settings do not go together, or the pool has no room.
            TraceError: a recording to fit to cannot be used.
        """
        return resolve_settings(self.settings | changes, self.files)

    def asked(
        self, hardware: Sequence[str], prices: Mapping[str, float], *, users: bool
    ) -> list[object]:
        """All that decides the answer, as data.

        Raises:
            TraceError: a table of the user's own cannot be read.
        """
        tables = [file_digest(file) if file is not None else None for file in self.files]
        return [
            *(self.trace_sha256, self.slo, self.settings, list(hardware), dict(prices), users),
            *(self.strict, self.only_fitting, self.max_replicas, self.max_users, self.crowd),
            *(self.window_s, self.seeds, self.with_sensitivity, self.with_autoscaling, tables),
        ]

    def trial(self, machine: Resolved, most: Populations | None = None) -> Job:
        """The trace on the machine; it may be given up where `most` is known."""
        arguments = (self.slo, self.strict, self.only_fitting)
        whole = key_of("trial", self.trace_sha256, _plain(machine), *arguments)
        key = whole if most is None else key_of("trial", whole, most)
        return Job(
            key,
            Outcome,
            run_trial,
            (self.trace, machine, *arguments, most),
            name_of(machine),
            whole if most is not None else None,
        )

    def users(self, machine: Resolved, users: int, seed: int | None = None) -> Job:
        """So many users on the machine."""
        crowd = replace(self.crowd, users=users, seed=self.crowd.seed if seed is None else seed)
        arguments = (self.slo, self.strict, self.only_fitting, crowd)
        key = key_of("users", self.trace_sha256, _plain(machine), *arguments)
        label = f"{numbers.counted(users, 'user')} on {name_of(machine)}"
        return Job(key, Outcome, run_users, (self.trace, machine, *arguments), label)

    def bound(self, machine: Resolved) -> Job:
        """What no fleet of such machines does with less."""
        arguments = (self.slo, self.strict, self.only_fitting)
        key = key_of("bound", self.trace_sha256, _plain(machine), *arguments)
        label = f"the least work on {machine.hardware.name}"
        return Job(
            key, BoundFigures, least, (self.trace, machine, *arguments), label, simulates=False
        )

    def windows(self, machine: Resolved, windows: Windows) -> Job:
        """The fewest replicas of the machine in each of these windows."""
        arguments = (self.slo, self.strict, self.only_fitting, windows)
        key = key_of("windows", self.trace_sha256, _plain(machine), *arguments)
        label = f"windows {windows.first} to {windows.end - 1} on {machine.hardware.name}"
        return Job(key, WindowCounts, fewest_by_window, (self.trace, machine, *arguments), label)


def build_crowd(watch_s: float, seed: int) -> Crowd:
    """Users who are watched so long, after a warm-up of a sixth of that.

    Raises:
        ConfigError: out of range.
    """
    if not 1 <= watch_s <= 1e7:
        raise ConfigError(f"--watch-s {watch_s:g}: from 1 second to 10 million")
    return Crowd(watched_s=watch_s, warm_up_s=watch_s / 6, seed=seed)


def name_of(machine: Resolved) -> str:
    """`3 x H100`, or `3 x (2 x H100)` where a replica is spread over two."""
    degree, name = machine.settings.tensor_parallel, machine.hardware.name
    return f"{machine.settings.replicas} x {f'({degree} x {name})' if degree > 1 else name}"


def _plain(machine: Resolved) -> object:
    return msgspec.to_builtins(machine)
