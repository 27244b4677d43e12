"""The frames of a KV pool as plainly as can be: counts, a stack of free frames, and a list of cached ones, next victim first."""

from collections.abc import Sequence


class Frames:
    def __init__(self, total: int) -> None:
        self.total = total
        self.refs = [0] * total
        self.indexed = [False] * total
        self.free = list(range(total - 1, -1, -1))
        self.cached: list[int] = []

    @property
    def available(self) -> int:
        return len(self.free) + len(self.cached)

    def take(self, count: int) -> tuple[list[int], list[int]] | None:
        """(frames, those of them that were evicted); the caller forgets their content."""
        if count > self.available:
            return None
        taken, evicted = [], []
        for _ in range(count):
            if self.free:
                frame = self.free.pop()
            else:
                frame = self.cached.pop(0)
                evicted.append(frame)
                self.indexed[frame] = False
            self.refs[frame] = 1
            taken.append(frame)
        return taken, evicted

    def share(self, frames: Sequence[int]) -> None:
        for frame in frames:
            if self.refs[frame] == 0:
                self.cached.remove(frame)
            self.refs[frame] += 1

    def give(self, frames: Sequence[int]) -> None:
        """Deepest first, so that a block leaves the cache before the block that it follows."""
        for frame in reversed(frames):
            self.refs[frame] -= 1
            if self.refs[frame] == 0:
                (self.cached if self.indexed[frame] else self.free).append(frame)
