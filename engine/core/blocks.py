"""BlockPool: physical frames, their reference counts and the free list. Knows no sequences and no content.

Invariants: a frame is free (count 0, on the free list once) or held (count >= 1, not on it); free + held = total.
"""

import numpy as np

from engine.core.errors import InvariantError
from engine.core.plan import I32


class BlockPool:
    """`total` frames, numbered from 0. Frames freed last are handed out first, so that hot memory is reused."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.refs: I32 = np.zeros(total, np.int32)
        self._free: I32 = np.arange(total - 1, -1, -1, dtype=np.int32)
        self._top = total

    @property
    def free(self) -> int:
        """Frames that nobody holds."""
        return self._top

    def take(self, count: int) -> I32 | None:
        """`count` free frames, now held once each; None, and no change, where there are fewer."""
        if count > self._top:
            return None
        blocks = self._free[self._top - count : self._top][::-1].copy()
        self._top -= count
        self.refs[blocks] = 1
        return blocks

    def give(self, blocks: I32) -> None:
        """Drops one reference from each of `blocks`, distinct frames; those that reach 0 become free."""
        self.refs[blocks] -= 1
        self._free[self._top : self._top + len(blocks)] = blocks[::-1]
        self._top += len(blocks)

    def check_invariants(self) -> None:
        """Raises `InvariantError` unless the free list holds each frame of count 0 exactly once. O(total)."""
        free = self._free[: self._top]
        on_list = np.bincount(free, minlength=self.total)
        if (on_list > 1).any() or ((on_list == 1) != (self.refs == 0)).any() or self.refs.min() < 0:
            raise InvariantError("the free list and the reference counts disagree")
