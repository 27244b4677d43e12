"""Buddy: power-of-two runs of an arena of any size, split on demand and merged with their buddy when both are free.

The arena is cut into the powers of two that its size is the sum of, largest first, so what is not a power of two is not lost, but
cannot merge with the rest. Source: Knowlton, CACM 1965.
"""

from engine.core.errors import InvariantError


def run_for(size: int) -> int:
    """The smallest power of two that holds `size`."""
    return 1 << max(0, size - 1).bit_length()


class Buddy:
    """`total` units. Of free runs of a size the one with the lowest address is taken first."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self._free: dict[int, set[int]] = {}
        """Size -> addresses of free runs."""
        self._roots: dict[int, int] = {}
        """Address -> size of each part of the arena."""
        at = 0
        for bit in range(total.bit_length() - 1, -1, -1):
            if total >> bit & 1:
                self._roots[at] = 1 << bit
                self._free.setdefault(1 << bit, set()).add(at)
                at += 1 << bit

    @property
    def largest(self) -> int:
        """The longest run that an empty arena gives."""
        return 1 << (self.total.bit_length() - 1)

    def take(self, size: int) -> int | None:
        """Address of a run of `run_for(size)` units; None, and no change, where no free run is that long."""
        wanted = run_for(size)
        fitting = [length for length, runs in self._free.items() if runs and length >= wanted]
        if not fitting:
            return None
        length = min(fitting)
        address = min(self._free[length])
        self._free[length].remove(address)
        while length > wanted:
            length //= 2
            self._free.setdefault(length, set()).add(address + length)
        self.free -= wanted
        return address

    def give(self, address: int, size: int) -> None:
        """The run that `take(size)` gave at `address` is free again."""
        length = run_for(size)
        self.free += length
        root = max(start for start in self._roots if start <= address)
        while length < self._roots[root]:
            buddy = root + ((address - root) ^ length)
            if buddy not in self._free.get(length, ()):
                break
            self._free[length].remove(buddy)
            address = min(address, buddy)
            length *= 2
        self._free.setdefault(length, set()).add(address)

    def check_invariants(self) -> None:
        """Raises `InvariantError` where free runs overlap, leave the arena, or do not add up."""
        runs = sorted((at, length) for length, starts in self._free.items() for at in starts)
        end = 0
        for at, length in runs:
            if at < end or at + length > self.total:
                raise InvariantError("free runs overlap, or leave the arena")
            end = at + length
        if sum(length for _, length in runs) != self.free:
            raise InvariantError("free runs do not add up to what is free")
