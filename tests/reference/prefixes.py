"""A prefix index as a dictionary from whole chains to frames: (width, salt, key, key, ...), nothing shared, nothing clever."""

from collections.abc import Sequence

Key = tuple[int, ...]


class Prefixes:
    def __init__(self) -> None:
        self.frame_at: dict[tuple[object, ...], int] = {}
        self.chain_of: dict[int, tuple[object, ...]] = {}

    def lookup(self, width: int, salt: str, keys: Sequence[Key]) -> list[int]:
        """Frames of the longest run of leading blocks that are here."""
        chain: tuple[object, ...] = (width, salt)
        frames = []
        for key in keys:
            chain = (*chain, key)
            if chain not in self.frame_at:
                break
            frames.append(self.frame_at[chain])
        return frames

    def publish(
        self, width: int, salt: str, parent: int, keys: Sequence[Key], frames: Sequence[int]
    ) -> int:
        """How many of `frames` became findable below `parent`, a frame or -1: all, or none where the first is here."""
        chain = (width, salt) if parent < 0 else self.chain_of[parent]
        if (*chain, keys[0]) in self.frame_at:
            return 0
        for key, frame in zip(keys, frames, strict=True):
            chain = (*chain, key)
            assert chain not in self.frame_at
            self.frame_at[chain] = frame
            self.chain_of[frame] = chain
        return len(frames)

    def has_child(self, frame: int) -> bool:
        chain = self.chain_of[frame]
        return any(len(c) > len(chain) and c[: len(chain)] == chain for c in self.frame_at)

    def drop(self, frame: int) -> None:
        assert not self.has_child(frame), "a block goes before a block that follows it"
        del self.frame_at[self.chain_of.pop(frame)]
