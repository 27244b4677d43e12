"""Runs the points of a sweep: what the cache has is taken from it, the rest goes to the workers and then into the cache.

The result depends on the points alone: not on the number of workers, on the order in which they end, or on what was cached.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.core.errors import ConfigError, TraceError
from sim.config import config_hash
from sim.replay import no_requests, replay
from sim.report.figures import ReplayReport, Resolved
from sim.sweep.axes import BUILT_IN, Axis, Files, Settings, grid, resolve_settings, show
from sim.sweep.cache import Cache
from sim.sweep.digest import file_digest, key_of
from sim.sweep.result import SweepPoint, SweepResult, figures_of
from sim.sweep.workers import Failure, Workers
from traces.formats import open_trace
from traces.names import UnknownNameError
from traces.shaping import shaped
from traces.slo import Slo

_MOST_VALUES: Final = 64
"""Of one setting, beside each other; more are not listed."""


class Progress(Struct, frozen=True):
    """How far a sweep is."""

    total: int
    done: int
    cached: int
    """Of those done."""
    failed: int


def replay_point(
    trace: Path, resolved: Resolved, strict: bool, slo: Slo | None = None
) -> ReplayReport:
    """A worker's job: one replay.

    Raises:
        TraceError: a bad row under `strict`, or no request.
        ConfigError: a setting does not fit the trace.
    """
    return replay(open_trace(trace, strict=strict), resolved, slo=slo)


def sweep(
    trace: Path,
    base: Settings,
    axes: Sequence[Axis],
    *,
    workers: Workers,
    cache: Cache,
    files: Files = BUILT_IN,
    strict: bool = False,
    slo: Slo | None = None,
    watch: Callable[[Progress], None] | None = None,
) -> SweepResult:
    """Every combination of the axes' values. A point that fails says why; the others go on.

    Raises:
        TraceError: the trace cannot be read.
        ConfigError: the axes and the base do not go together, no point can be run, a name is unknown, or the cache cannot be written.
    """
    digest = file_digest(trace)
    points = [_Point(settings, axes, digest, files, strict, slo) for settings in grid(base, axes)]
    num_cached = 0

    def tell() -> None:
        if watch is not None:
            done = sum(point.is_done for point in points)
            failed = sum(point.error is not None for point in points)
            watch(Progress(len(points), done, num_cached, failed))

    _refuse_hopeless(points)
    pending: list[tuple[int, Resolved]] = []
    for number, point in enumerate(points):
        if point.resolved is None:
            continue
        found = cache.get(point.key, ReplayReport)
        if found is not None:
            num_cached += 1
            point.end(found)
        else:
            pending.append((number, point.resolved))
    if pending:
        _check_trace(trace, [resolved for _, resolved in pending], strict)
    for number, resolved in pending:
        workers.submit(number, replay_point, trace, resolved, strict, slo)
    tell()
    while ended := workers.wait():
        for number, result in ended:
            points[number].end(result)
            if isinstance(result, ReplayReport):
                cache.put(points[number].key, result)
        tell()
    return SweepResult(
        trace=trace.name,
        trace_sha256=digest,
        base=base,
        axes=list(axes),
        slo=slo,
        points=[point.row() for point in points],
        assumptions=list(
            dict.fromkeys(s for p in points if p.report is not None for s in p.report.biases)
        ),
        assumed=_assumed([p.resolved for p in points if p.resolved is not None]),
    )


def _refuse_hopeless(points: Sequence["_Point"]) -> None:
    """Raises ConfigError where no point is a machine: then there is nothing to compare."""
    if all(point.resolved is None for point in points):
        first = points[0]
        place = ",".join(f"{name}={show(value)}" for name, value in first.place.items())
        where = f"none of the {len(points):,} points can run; {place}: " if len(points) > 1 else ""
        raise ConfigError(f"{where}{first.error}")


def _check_trace(trace: Path, machines: Sequence[Resolved], strict: bool) -> None:
    """That the trace has a request and, unless each machine's settings supply them, arrival times; under `strict`, that all its rows are good.

    Raises:
        TraceError: it has no request, or a bad row.
        ConfigError: it has no times.
    """
    source = open_trace(trace, strict=strict)
    requests = source.requests()
    if next(requests, None) is None:
        raise no_requests(source)
    if strict:
        for _ in requests:
            pass
    timeless = [
        each.settings.shaping for each in machines if each.settings.shaping.arrivals is None
    ]
    if len(timeless) == len(machines):
        shaped(source, timeless[0])


def _assumed(machines: Sequence[Resolved]) -> dict[str, list[Any]]:
    """Every value by its path, the first `_MOST_VALUES` that differ."""
    found: dict[str, list[Any]] = {}
    for machine in machines:
        for path, value in _leaves("", msgspec.to_builtins(machine)):
            values = found.setdefault(path, [])
            if value not in values and len(values) < _MOST_VALUES:
                values.append(value)
    return found


def _leaves(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}" if path else str(name), inner)
    else:
        yield path, value


class _Point:
    """A point on its way from settings to a row."""

    def __init__(
        self,
        settings: Settings,
        axes: Sequence[Axis],
        trace_sha256: str,
        files: Files,
        strict: bool,
        slo: Slo | None,
    ) -> None:
        self.place = {axis.name: settings[axis.name] for axis in axes}
        self.resolved: Resolved | None = None
        self.error: str | None = None
        self.report: ReplayReport | None = None
        self.key = ""
        try:
            self.resolved = resolve_settings(settings, files)
        except UnknownNameError:
            raise
        except (ConfigError, TraceError) as error:
            self.error = error.message
        else:
            # Other limits are another judgement of each request, and nothing of a report is judged anew.
            judged = [slo] if slo is not None else []
            machine = msgspec.to_builtins(self.resolved)
            self.key = key_of("replay", trace_sha256, strict, machine, *judged)

    @property
    def is_done(self) -> bool:
        return self.report is not None or self.error is not None

    def end(self, result: ReplayReport | Failure) -> None:
        if isinstance(result, Failure):
            self.error = result.message
        else:
            self.report = result

    def row(self) -> SweepPoint:
        kept = self.report.goodput if self.report is not None else None
        return SweepPoint(
            settings=self.place,
            key=self.key or None,
            config_sha256=config_hash(self.resolved) if self.resolved is not None else None,
            figures=figures_of(self.report) if self.report is not None else None,
            meets=kept.meets if kept is not None and kept.judged else None,
            error=self.error,
        )
