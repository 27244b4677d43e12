"""The delta format: small where little changed, bounded in its events, and empty where nothing did."""

import msgspec
import numpy as np

from engine.core import log
from engine.core.frames import FrameMap
from traces.viewer.delta import MAX_EVENTS, MAX_EVICTED, Delta, delta, events_of, whole


def frame_map(total: int, held: dict[int, tuple[int, int]]) -> FrameMap:
    """A pool where frame f of `held` is block `held[f][1]` of request `held[f][0]`."""
    state, refs = np.zeros(total, np.int8), np.zeros(total, np.int32)
    request, index = np.full(total, -1, np.int64), np.full(total, -1, np.int32)
    column = np.full(total, -1, np.int32)
    for frame, (owner, block) in held.items():
        state[frame], refs[frame] = 2, 1
        request[frame], index[frame], column[frame] = owner, 0, block
    nothing = np.zeros(0, np.int32)
    return FrameMap(
        16, state, refs, request, index, column, nothing, nothing.astype(np.int64), nothing
    )


def test_long_prompt_is_one_run() -> None:
    frames = frame_map(20_000, {100 + i: (7, i) for i in range(5_000)})
    assert whole(frames).runs == [
        *(0, 100, 0, 0, -1, -1, -1),
        *(100, 5_000, 2, 1, 7, 0, 0),
        *(5_100, 14_900, 0, 0, -1, -1, -1),
    ]


def test_scattered_frames_of_one_owner_are_runs_of_their_own() -> None:
    frames = frame_map(8, {1: (7, 0), 2: (7, 2), 4: (7, 3)})
    assert delta(frame_map(8, {}), frames).runs == [
        *(1, 1, 2, 1, 7, 0, 0),
        *(2, 1, 2, 1, 7, 0, 2),
        *(4, 1, 2, 1, 7, 0, 3),
    ]


def test_delta_names_only_what_changed() -> None:
    old = frame_map(100, {i: (1, i) for i in range(10)})
    new = frame_map(100, {i: (1, i) for i in range(11)})
    change = delta(old, new)
    assert change.runs == [10, 1, 2, 1, 1, 0, 10]
    assert msgspec.json.encode(change) == b'{"runs":[10,1,2,1,1,0,10]}'


def test_nothing_changed_is_empty() -> None:
    frames = frame_map(10, {1: (1, 0)})
    assert delta(frames, frames).is_empty
    assert delta(frames, frames) == Delta()
    assert not delta(frames, frames, [["copy", 1, 2]]).is_empty


def test_events_say_what_the_map_cannot() -> None:
    records = [
        log.Admitted(1, 5, 0, (1, 2), 0),
        log.Copied(2, 3, 10, 11),
        log.Evicted(2, (4, 5)),
        log.Preempted(3, 9, "swap", 40, 0, 0, 5),
        log.SwapStarted(3, 9, "out", 0, 3),
        log.Ended(4, 9, -1, 1),
    ]
    assert events_of(records) == [
        ["copy", 10, 11],
        ["evict", 4, 5],
        ["preempt", 9, "swap", 5],
        ["swap", 9, "out"],
    ]


def test_events_are_bounded() -> None:
    frames = frame_map(4, {})
    (event,) = events_of([log.Evicted(0, tuple(range(5_000)))])
    assert len(event) == 1 + MAX_EVICTED
    many = [["copy", i, i] for i in range(1_000)]
    assert delta(frames, frames, many).events == many[-MAX_EVENTS:]
