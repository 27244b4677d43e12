"""Contiguous KV memory, as before paging: a sequence gets one run of positions when it is admitted, and keeps it to its end.

The `Allocator` that the scheduler asks, so that everything but memory is the same. Three reservations (Kwon et al., SOSP 2023,
section 6.1), all placed by a buddy allocator: the longest sequence that may be; the output rounded up to a power of two; exactly what
the sequence will use, which only an oracle knows. Nothing grows, so nobody is ever preempted; nothing is shared, so a request has one
sequence and no prefix is found.
"""

from typing import Literal, Never

import numpy as np

from engine.core.allocator import Grant, Move
from engine.core.arrays import I32, I64, Index
from engine.core.content import Content
from engine.core.errors import InvariantError
from engine.core.plan import MemoryReport
from sim.buddy import Buddy, run_for

Reservation = Literal["max", "pow2", "oracle"]
_NOTHING: I32 = np.zeros(0, np.int32)


class Contiguous:
    """`total_blocks` blocks of `block_size` positions, given out in runs."""

    last_hits = 0
    cached_blocks = 0
    shares_content = False
    keeps_tokens = False

    def __init__(
        self, reservation: Reservation, total_blocks: int, block_size: int, max_context: int
    ) -> None:
        self.block_size = block_size
        self.total_blocks = total_blocks
        self.evicted: list[Index] = []
        self._reservation = reservation
        self._max_context = max_context
        self._buddy = Buddy(total_blocks)
        self._wanted: dict[int, int] = {}
        """Positions to reserve for each open row."""
        self._runs: dict[int, tuple[int, int]] = {}
        """(address, blocks asked for) of each row that holds memory."""
        self._room: I64 = np.zeros(16, np.int64)

    @property
    def free_blocks(self) -> int:
        """Blocks in no run, whether or not a run fits between them."""
        return self._buddy.free

    @property
    def largest_run(self) -> int:
        """The most blocks that a sequence can have in an empty arena."""
        return self._buddy.largest

    def reserved_for(self, num_prompt: int, limit: int) -> int:
        """Positions that a sequence is given which ends at `limit` tokens; the last token takes none."""
        match self._reservation:
            case "max":
                return self._max_context
            case "pow2":
                return min(num_prompt + run_for(limit - num_prompt), self._max_context)
            case "oracle":
                return limit - 1

    def could_hold(self, num_shared: int, num_tokens: int, num_rows: int) -> bool:
        """See `Allocator`: one sequence, whose prompt has `num_shared` tokens."""
        reserved = self.reserved_for(num_shared, num_tokens + 1)
        fits = num_tokens <= reserved and self._blocks_for(reserved) <= self.largest_run
        return fits and num_rows == 1

    def longest(self, num_shared: int, num_rows: int) -> int:
        """See `Allocator`."""
        return min(self.largest_run * self.block_size, self._max_context) if num_rows == 1 else 0

    def open(
        self, row: int, content: Content | None, salt: str, num_prompt: int, limit: int
    ) -> None:
        """See `Allocator`."""
        self._wanted[row] = self.reserved_for(num_prompt, limit)

    def close(self, row: int) -> None:
        """See `Allocator`."""
        self._wanted.pop(row, None)

    def accept(self, rows: I32, positions: I32, tokens: I32) -> None:
        """See `Allocator`: contents are not looked at."""

    def admit_group(self, members: list[tuple[int, int]], num_shared: int, reserve: int) -> Grant:
        """See `Allocator`. Nothing grows, so nothing has to be left free."""
        if len(members) > 1:
            raise InvariantError("contiguous memory serves requests of one sequence")
        row = members[0][0]
        blocks = self._blocks_for(self._wanted[row])
        address = self._buddy.take(blocks)
        if address is None:
            return Grant.LATER
        self._runs[row] = (address, blocks)
        if row >= len(self._room):
            self._room = np.append(self._room, np.zeros(row + 1, np.int64))
        self._room[row] = blocks * self.block_size
        return Grant.OK

    def short(self, rows: Index, lengths: I32) -> Index:
        """See `Allocator`."""
        return (self._room[rows] < lengths).nonzero()[0]

    def room_of(self, rows: Index) -> I64:
        """See `Allocator`."""
        return self._room[rows]

    def held_by(self, row: int) -> int:
        """See `Allocator`: the blocks that were asked for."""
        return self._runs[row][1] if row in self._runs else 0

    def release(self, row: int) -> int:
        """See `Allocator`."""
        if row not in self._runs:
            return 0
        address, blocks = self._runs.pop(row)
        self._buddy.give(address, blocks)
        self._room[row] = 0
        return blocks

    def blocks_of(self, row: int) -> I32:
        """See `Allocator`."""
        address, blocks = self._runs[row]
        return np.arange(address, address + blocks, dtype=np.int32)

    def shares_tail(self, row: int, position: int) -> bool:
        """See `Allocator`."""
        return False

    def publish(self, row: int, num_tokens: int) -> None:
        """See `Allocator`: nothing is findable."""

    def computed(self, positions: I32) -> None:
        """See `Allocator`: nothing is findable."""

    def silence(self, row: int) -> None:
        """See `Allocator`: nothing is findable."""

    def uncopy(self, rows: list[int]) -> list[tuple[int, int, int]]:
        """See `Allocator`: nothing is copied."""
        return []

    def copied(self, sources: list[int]) -> None:
        """See `Allocator`: nothing is copied."""

    def take_deltas(self) -> tuple[I32, I32, I32]:
        """See `Allocator`: there are no tables."""
        return _NOTHING, _NOTHING, _NOTHING

    def take_copies(self) -> list[tuple[int, int]]:
        """See `Allocator`: nothing is copied."""
        return []

    def take_evicted(self) -> tuple[int, ...]:
        """See `Allocator`: nothing is cached."""
        return ()

    def fork(self, parent: int, child: int, num_tokens: int) -> None:
        """See `Allocator`."""
        _refuse()

    def move(self, rows: list[int], parents: list[int]) -> None:
        """See `Allocator`."""
        _refuse()

    def grow(self, rows: Index) -> I32 | None:
        """See `Allocator`."""
        _refuse()

    def grow_each(self, rows: Index, nth: Index) -> tuple[I32, int]:
        """See `Allocator`."""
        _refuse()

    def make_writable(self, row: int, position: int) -> tuple[int, int] | None:
        """See `Allocator`."""
        _refuse()

    def swap_out(self, group: int, members: list[tuple[int, int]]) -> Move | None:
        """See `Allocator`."""
        _refuse()

    def swap_in(
        self, group: int, members: list[tuple[int, int]], valid: int, reserve: int
    ) -> Move | Grant:
        """See `Allocator`."""
        _refuse()

    def moved(self, frames: I32) -> None:
        """See `Allocator`."""
        _refuse()

    def forget(self, group: int) -> None:
        """See `Allocator`."""
        _refuse()

    def check_invariants(self) -> None:
        """Raises `InvariantError` unless runs and free runs divide the arena between them. O(runs)."""
        self._buddy.check_invariants()
        held = sum(run_for(blocks) for _, blocks in self._runs.values())
        if held + self._buddy.free != self.total_blocks:
            raise InvariantError("runs and free memory do not add up to the arena")

    def report(
        self, computed: I32, num_running: int, num_waiting: int, num_swapped: int
    ) -> MemoryReport:
        """See `Allocator`."""
        held = self.total_blocks - self._buddy.free
        return MemoryReport(
            block_size=self.block_size,
            total_blocks=self.total_blocks,
            free_blocks=self._buddy.free,
            cached_blocks=0,
            held_blocks=held,
            moving_blocks=0,
            used_tokens=sum(int(computed[row]) for row in self._runs),
            allocated_tokens=held * self.block_size,
            logical_blocks=held,
            host_blocks=0,
            host_used_blocks=0,
            num_running=num_running,
            num_waiting=num_waiting,
            num_swapped=num_swapped,
        )

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


def _refuse() -> Never:
    raise InvariantError("contiguous memory neither grows, shares nor moves")
