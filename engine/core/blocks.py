"""BlockPool: physical frames, their reference counts, the free list and the eviction order. Knows no sequences.

A frame is in exactly one state:

    free     no references, no indexed content           on the free list, once
    cached   no references, content still indexed        in the eviction queue
    held     referenced by a table
    moving   referenced only by transfers and copies in flight (`moves` counts these)

Eviction order: frames become cached when their last reference goes, deepest block first; the frame that became cached
first leaves first. A sequence that holds a block holds the blocks before it, so a parent never leaves before its
children. The queue holds one segment for each release; an entry whose frame was referenced again since is skipped when
it is reached, and swept when such entries outnumber the live ones: O(1) amortised for each frame.
"""

from collections import deque

import numpy as np

from engine.core.arrays import I32, I64, ONE, Bools, Index
from engine.core.errors import InvariantError


class BlockPool:
    """`total` frames, numbered from 0. Frames freed last are handed out first; never-cached ones before cached ones."""

    def __init__(self, total: int, *, sweep_from: int = 1024) -> None:
        """All frames are free; the eviction queue is swept from `sweep_from` stale entries on."""
        self.total = total
        self.refs: I32 = np.zeros(total, np.int32)
        self.moves: I32 = np.zeros(total, np.int32)
        """References of `refs` that belong to transfers and copies in flight."""
        self.indexed: Bools = np.zeros(total, np.bool_)
        """Set and cleared by the prefix index: the frame's content can be found."""
        self.cached = 0
        self._free: Index = np.arange(total - 1, -1, -1)
        self._top = total
        self._stamp: I64 = np.zeros(total, np.int64)
        self._serial = 0
        self._queue: deque[tuple[int, Index]] = deque()
        self._queued = 0
        self._sweep_from = sweep_from

    @property
    def free(self) -> int:
        """Frames without content."""
        return self._top

    @property
    def available(self) -> int:
        """Frames that can be handed out: free, or cached and evictable."""
        return self._top + self.cached

    def take(self, count: int) -> tuple[Index, Index] | None:
        """(frames, evicted): `count` frames now held once each, the last of them evicted; None, and no change, if fewer.

        The caller drops the evicted frames' content from the index before anything else.
        """
        top = self._top
        if count <= top:
            blocks = self._free[top - count : top][::-1].copy()
            self._top = top - count
            self.refs[blocks] = 1
            return blocks, blocks[:0]
        if count > self.available:
            return None
        evicted = self._evict(count - top)
        blocks = np.concatenate([self._free[:top][::-1], evicted]) if top else evicted.copy()
        self._top = 0
        self.refs[blocks] = 1
        return blocks, evicted

    def _evict(self, count: int) -> Index:
        parts: list[Index] = []
        self.cached -= count
        while count:
            serial, frames = self._queue.popleft()
            window = frames[:count]
            idle = self._stamp[window] == serial
            idle &= self.refs[window] == 0
            live = window if np.count_nonzero(idle) == len(window) else window[idle]
            if len(window) < len(frames):
                self._queue.appendleft((serial, frames[count:]))
            self._queued -= len(window)
            count -= len(live)
            parts.append(live)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def share(self, blocks: I32 | Index) -> None:
        """Adds a reference to each of `blocks`, distinct frames that are held or cached."""
        blocks = blocks.astype(np.intp)
        refs = self.refs[blocks]
        self.cached -= len(refs) - int(np.count_nonzero(refs))
        self.refs[blocks] = refs + ONE

    def num_cached_of(self, blocks: I32 | Index) -> int:
        """How many of `blocks` are cached, and so would be pinned by sharing them."""
        return len(blocks) - int(np.count_nonzero(self.refs.take(blocks)))

    def give(self, blocks: I32 | Index) -> None:
        """Drops a reference from each of `blocks`, distinct frames in logical order; the last reference caches or frees."""
        blocks = blocks.astype(np.intp)
        refs = self.refs[blocks] - ONE
        self.refs[blocks] = refs
        gone = blocks[::-1] if not np.count_nonzero(refs) else blocks[refs == 0][::-1]
        if not len(gone):
            return
        keep = self.indexed[gone]
        kept = int(np.count_nonzero(keep))
        if kept < len(gone):
            freed = gone[~keep] if kept else gone
            self._free[self._top : self._top + len(freed)] = freed
            self._top += len(freed)
        if kept:
            self._cache(gone[keep] if kept < len(gone) else gone.copy())

    def _cache(self, frames: Index) -> None:
        self._serial += 1
        self._stamp[frames] = self._serial
        self._queue.append((self._serial, frames))
        self.cached += len(frames)
        self._queued += len(frames)
        if self._queued > 2 * self.cached + self._sweep_from:
            self._sweep()

    def _sweep(self) -> None:
        """Drops queue entries whose frames were referenced again since."""
        queue: deque[tuple[int, Index]] = deque()
        for serial, frames in self._queue:
            live = frames[(self._stamp[frames] == serial) & (self.refs[frames] == 0)]
            if len(live):
                queue.append((serial, live))
        self._queue, self._queued = queue, self.cached

    def cached_in_order(self) -> list[int]:
        """The cached frames, next to be evicted first. O(queue)."""
        order: list[int] = []
        for serial, frames in self._queue:
            live = frames[(self._stamp[frames] == serial) & (self.refs[frames] == 0)]
            order.extend(live.tolist())
        return order

    def check_invariants(self) -> None:
        """Raises `InvariantError` unless every frame is in exactly one state. O(total)."""
        listed = np.bincount(self._free[: self._top], minlength=self.total)
        queued = np.bincount(np.array(self.cached_in_order(), np.int64), minlength=self.total)
        idle = self.refs == 0
        if (listed + queued != idle).any():
            raise InvariantError("free list, eviction queue and reference counts disagree")
        if ((queued == 1) != (idle & self.indexed)).any() or self.cached != queued.sum():
            raise InvariantError("a cached frame is not indexed, or an indexed one not cached")
        if (self.moves < 0).any() or (self.moves > self.refs).any():
            raise InvariantError("a frame has more transfers than references")
