"""What the block-map view is fed: a whole frame map, or what changed since another one. Pure: arrays in, a Struct out.

Knows the core's frame map and decision records; knows no time, no transport and no colours.

A run is seven integers, `first, count, state, refs, request, index, column`: frames first to first + count - 1 are equal in
state, refs, request and index, and where column is not -1 it rises by one a frame, for frames are handed out in order and so a
long prompt is one run. Runs are written one after another in one flat list.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.core import log
from engine.core.frames import FrameMap

RUN_LENGTH: Final = 7
MAX_EVENTS: Final = 64
"""Most events in one delta, the latest; nobody sees more at once."""
MAX_EVICTED: Final = 512
"""Most frames that one eviction names."""


class Delta(Struct, frozen=True, omit_defaults=True):
    """Changes of a map. `total` is set on a whole map, which replaces what was there."""

    total: int = 0
    runs: list[int] = []
    others: list[list[int]] = []
    """`[frame, request, index, request, index, ...]`: holders beside the owner of frames where these changed."""
    events: list[list[int | str]] = []
    """What happened meanwhile, oldest first; see `events_of`."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not (self.total or self.runs or self.others or self.events)


def whole(new: FrameMap) -> Delta:
    """The map as it is."""
    total = len(new.state)
    return Delta(
        total=total,
        runs=_runs(new, np.arange(total)),
        others=_others(new, np.unique(new.other_frames)),
    )


def delta(old: FrameMap, new: FrameMap, events: Sequence[list[int | str]] = ()) -> Delta:
    """What turns `old` into `new`, maps of one pool, with the events to show on the way. O(frames)."""
    changed = (
        (old.state != new.state)
        | (old.refs != new.refs)
        | (old.request != new.request)
        | (old.index != new.index)
        | (old.column != new.column)
    )
    return Delta(
        runs=_runs(new, np.flatnonzero(changed)),
        others=_others(new, _frames_with_other_holders(old, new)),
        events=list(events)[-MAX_EVENTS:],
    )


def events_of(records: Sequence[log.Record]) -> list[list[int | str]]:
    """Decisions that the view shows as they happen.

    `["copy", source, target]` copy-on-write; `["evict", frame, ...]` cached content dropped;
    `["preempt", request, mode, asking]`, the last being who needed the room; `["swap", request, direction]` a transfer begins.
    """
    events: list[list[int | str]] = []
    for record in records:
        match record:
            case log.Copied():
                events.append(["copy", record.source, record.target])
            case log.Evicted():
                events.append(["evict", *record.blocks[:MAX_EVICTED]])
            case log.Preempted():
                events.append(["preempt", record.request, record.mode, record.asking])
            case log.SwapStarted():
                events.append(["swap", record.request, record.direction])
            case _:
                pass
    return events


def _runs(new: FrameMap, frames: NDArray[np.int64]) -> list[int]:
    """The named frames, ascending, as runs."""
    if not len(frames):
        return []
    state, refs = new.state[frames], new.refs[frames]
    request, index, column = new.request[frames], new.index[frames], new.column[frames]
    step = np.diff(column)
    joined = (
        (np.diff(frames) == 1)
        & (np.diff(state) == 0)
        & (np.diff(refs) == 0)
        & (np.diff(request) == 0)
        & (np.diff(index) == 0)
        & np.where(column[1:] < 0, step == 0, (step == 1) & (column[:-1] >= 0))
    )
    heads = np.concatenate([[0], np.flatnonzero(~joined) + 1])
    runs = np.empty((len(heads), RUN_LENGTH), np.int64)
    runs[:, 0] = frames[heads]
    runs[:, 1] = np.diff(heads, append=len(frames))
    columns: tuple[NDArray[np.integer], ...] = (state, refs, request, index, column)
    for place, values in enumerate(columns, start=2):
        runs[:, place] = values[heads]
    flat: list[int] = runs.ravel().tolist()
    return flat


def _others(new: FrameMap, frames: NDArray[np.int64]) -> list[list[int]]:
    """For each of `frames` its further holders, none perhaps."""
    first = np.searchsorted(new.other_frames, frames, side="left")
    last = np.searchsorted(new.other_frames, frames, side="right")
    pairs = np.stack([new.other_requests, new.other_indexes], axis=1)
    return [
        [frame, *pairs[begin:end].ravel().tolist()]
        for frame, begin, end in zip(frames.tolist(), first.tolist(), last.tolist(), strict=True)
    ]


def _frames_with_other_holders(old: FrameMap, new: FrameMap) -> NDArray[np.int64]:
    """Frames whose list of further holders is not what it was."""
    if all(
        np.array_equal(a, b)
        for a, b in (
            (old.other_frames, new.other_frames),
            (old.other_requests, new.other_requests),
            (old.other_indexes, new.other_indexes),
        )
    ):
        return np.zeros(0, np.int64)

    def entries(one: FrameMap) -> NDArray[np.void]:
        rows = np.stack(
            [one.other_frames.astype(np.int64), one.other_requests, one.other_indexes], axis=1
        )
        entry = np.dtype([("frame", np.int64), ("request", np.int64), ("index", np.int64)])
        return np.ascontiguousarray(rows).view(entry).ravel()

    differing: NDArray[np.void] = np.setxor1d(entries(old), entries(new), assume_unique=True)
    frames: NDArray[np.int64] = differing["frame"]
    return np.unique(frames)
