"""The block map at chosen moments of a replay that is over: its peak, its first preemption, its end.

The peak is known in hindsight only, so the requests are run again up to the last moment of interest, which gives the same run. Draws nothing.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from engine.core.frames import FrameMap, FrameState
from sim.replay import simulate
from sim.report.figures import ReplayReport, Resolved
from sim.twin import Fleet, Run
from traces.report import numbers
from traces.report.document import Moment
from traces.schema import TraceRequest
from traces.viewer.delta import whole

MOST_FRAMES: Final = 65_536
"""Of larger pools every second, or every third, ... frame is shown."""


class _Wanted(NamedTuple):
    title: str
    at_ns: int
    replica: int


def moments(
    report: ReplayReport,
    run: Run,
    resolved: Resolved,
    again: Callable[[], Iterable[TraceRequest]],
    hash_block_tokens: int,
) -> list[Moment]:
    """The maps of a run.

    Args:
        report: Of the run.
        run: The run.
        resolved: What was run.
        again: Gives the same requests once more.
        hash_block_tokens: What their hash ids cover.

    Raises:
        TraceError: from reading the requests again.
    """
    if resolved.settings.allocator != "paged":
        return []
    wanted = [
        _Wanted(
            "Peak", run.replicas[report.memory.peak_replica].peak_ns, report.memory.peak_replica
        )
    ]
    preempted = [
        (r.preempted_ns[0], number) for number, r in enumerate(run.replicas) if r.preempted_ns
    ]
    if preempted:
        wanted.append(_Wanted("First preemption", *min(preempted)))
    maps: dict[str, FrameMap] = {}

    def look(fleet: Fleet) -> None:
        for moment in wanted:
            fleet.replicas[moment.replica].look(
                moment.at_ns, partial(maps.__setitem__, moment.title)
            )

    if report.memory.peak_blocks:
        last = max(moment.at_ns for moment in wanted)
        simulate(again(), resolved, hash_block_tokens, look, last + 1)
    maps["End"] = run.replicas[report.memory.peak_replica].scheduler.frames()
    wanted.append(
        _Wanted("End", round(report.throughput.simulated_s * 1e9), report.memory.peak_replica)
    )
    several = len(run.replicas) > 1
    return [
        _moment(moment, maps[moment.title], several) for moment in wanted if moment.title in maps
    ]


def _moment(wanted: _Wanted, frames: FrameMap, several: bool) -> Moment:
    total = len(frames.state)
    counts = np.bincount(frames.state, minlength=len(FrameState)).tolist()
    held = counts[FrameState.HELD] + counts[FrameState.SHARED]
    where = f", replica {wanted.replica}" if several else ""
    text = (
        f"At {numbers.seconds(wanted.at_ns / 1e9)}{where}: {held:,} of {total:,} frames are held by "
        f"{numbers.counted(len(np.unique(frames.request[frames.request >= 0])), 'request')}, {counts[FrameState.SHARED]:,} of them shared; "
        f"{counts[FrameState.CACHED]:,} cached, {counts[FrameState.FREE]:,} free."
    )
    every = -(-total // MOST_FRAMES)
    if every > 1:
        text += f" Shown: one frame of every {every}."
        frames = _thinned(frames, every)
    return Moment(title=wanted.title, text=text, block_size=frames.block_size, delta=whole(frames))


def _thinned(frames: FrameMap, every: int) -> FrameMap:
    """Every so many-th frame, alone: who else holds it is left out."""
    return replace(
        frames,
        **{
            name: getattr(frames, name)[::every]
            for name in ("state", "refs", "request", "index", "column")
        },
        **{
            name: getattr(frames, name)[:0]
            for name in ("other_frames", "other_requests", "other_indexes")
        },
    )
