"""What lies in each frame, by looking at one frame at a time; and the view's state, by applying deltas one run at a time."""

from engine.core.frames import MAX_OTHERS, FrameMap, FrameState
from engine.core.scheduler import Scheduler
from traces.viewer.delta import RUN_LENGTH, Delta

Cell = tuple[int, int, tuple[int, int, int] | None, list[tuple[int, int]]]
"""State, references, (request, index, column) of the owner, further holders."""


def slow_frames(scheduler: Scheduler) -> list[Cell]:
    memory, table = scheduler.allocator, scheduler._book.table
    cells: list[Cell] = []
    for frame in range(memory.total_blocks):
        holders = []
        for row in range(len(memory.tables.counts)):
            for column, block in enumerate(memory.tables.of(row).tolist()):
                if block == frame:
                    holders.append((int(table.request[row]), int(table.index[row]), column))
        refs = int(memory.pool.refs[frame])
        if len(holders) > 1:
            state = FrameState.SHARED
        elif holders:
            state = FrameState.HELD
        elif refs:
            state = FrameState.MOVING
        elif memory.pool.indexed[frame]:
            state = FrameState.CACHED
        else:
            state = FrameState.FREE
        others = [(request, index) for request, index, _ in holders[1 : 1 + MAX_OTHERS]]
        cells.append((int(state), refs, holders[0] if holders else None, others))
    return cells


def cells_of(frames: FrameMap) -> list[Cell]:
    cells: list[Cell] = []
    for frame in range(len(frames.state)):
        owner = (int(frames.request[frame]), int(frames.index[frame]), int(frames.column[frame]))
        mine = frames.other_frames == frame
        pairs = zip(
            frames.other_requests[mine].tolist(), frames.other_indexes[mine].tolist(), strict=True
        )
        held = None if owner[2] < 0 else owner
        cells.append((int(frames.state[frame]), int(frames.refs[frame]), held, list(pairs)))
    return cells


class SlowView:
    """What the script keeps."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []

    def apply(self, delta: Delta) -> None:
        if delta.total:
            self.cells = [(0, 0, None, [])] * delta.total
        for at in range(0, len(delta.runs), RUN_LENGTH):
            first, count, state, refs, request, index, column = delta.runs[at : at + RUN_LENGTH]
            for i in range(count):
                owner = None if column < 0 else (request, index, column + i)
                self.cells[first + i] = (state, refs, owner, self.cells[first + i][3])
        for frame, *pairs in delta.others:
            state, refs, owner, _ = self.cells[frame]
            holders = list(zip(pairs[::2], pairs[1::2], strict=True))
            self.cells[frame] = (state, refs, owner, holders)
