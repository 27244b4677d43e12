"""SwapSpace: host blocks, and which of them hold the blocks of a sequence that is swapped out. Knows no policy.

Invariants: a host block is free, or part of the layout of one group, or held by a transfer of an ended group; free +
used = total.
"""

import numpy as np
from msgspec import Struct

from engine.core.arrays import I32
from engine.core.errors import InvariantError


class Layout(Struct, frozen=True, eq=False):
    """Where a group lies on the host. `columns[i]` are the host blocks of its i-th row, in logical order."""

    blocks: I32
    """Distinct host blocks."""
    columns: tuple[I32, ...]


class SwapSpace:
    """`total` host blocks of the size of a frame."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free: list[int] = list(range(total - 1, -1, -1))

    @property
    def free(self) -> int:
        """Host blocks that hold nothing."""
        return len(self._free)

    def store(self, columns: list[I32]) -> tuple[I32, Layout] | None:
        """Host blocks for the distinct frames of `columns`, in order of first sight; (frames, layout), None where too few."""
        every = np.concatenate(columns) if columns else np.zeros(0, np.int32)
        _, first, place = np.unique(every, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        frames = every[first[order]]
        if len(frames) > len(self._free):
            return None
        hosts = np.array([self._free.pop() for _ in range(len(frames))], np.int32)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        mapped = hosts[rank[place.reshape(-1)]] if len(frames) else every
        bounds = np.cumsum([len(column) for column in columns])[:-1]
        return frames, Layout(hosts, tuple(np.split(mapped, bounds)))

    def drop(self, layout: Layout) -> None:
        """The content of `layout` is not needed any more."""
        self._free.extend(reversed(layout.blocks.tolist()))

    def check_invariants(self, layouts: list[Layout]) -> None:
        """Raises `InvariantError` unless `layouts` and the free list divide the host pool between them."""
        used = [block for layout in layouts for block in layout.blocks.tolist()]
        if sorted(used + self._free) != list(range(self.total)):
            raise InvariantError("a host block is lost, or held twice")
