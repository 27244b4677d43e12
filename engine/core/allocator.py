"""What the scheduler asks of memory. Paged memory implements it in `memory.py`; contiguous baselines in `sim/`.

A row is a sequence's place in the tables. Every call is all or nothing: what cannot be served changes nothing.
"""

from enum import Enum
from typing import Protocol

from engine.core.plan import I32, MemoryReport


class Grant(Enum):
    """Answer to a request for memory."""

    OK = "ok"
    LATER = "later"
    """Not now: frames are held by others."""
    NEVER = "never"
    """Not in an empty pool either."""


class Allocator(Protocol):
    """KV memory for sequences, addressed by row."""

    block_size: int
    total_blocks: int

    @property
    def free_blocks(self) -> int:
        """Frames that can be handed out now."""
        ...

    def could_hold(self, num_tokens: int) -> bool:
        """Whether a sequence of `num_tokens` positions fits when it is alone."""
        ...

    def admit(self, row: int, num_tokens: int, reserve: int) -> Grant:
        """Gives `row`, which holds nothing, room for `num_tokens` positions and leaves `reserve` frames free."""
        ...

    def short(self, rows: I32, lengths: I32) -> I32:
        """Indices into `rows` of those that cannot yet hold `lengths` positions, ascending. Changes nothing."""
        ...

    def grow(self, rows: I32) -> I32 | None:
        """Gives each of `rows` one more frame; the frames in the same order, or None where not all can be served."""
        ...

    def release(self, row: int) -> int:
        """Takes all frames from `row`; how many it held. Later calls find it empty."""
        ...

    def blocks_of(self, row: int) -> I32:
        """The frames of `row` in logical order, a view that is valid until the next call."""
        ...

    def held_by(self, row: int) -> int:
        """How many frames `row` holds."""
        ...

    def take_deltas(self) -> tuple[I32, I32, I32]:
        """(rows, columns, frames) of table entries set since the last take, in order."""
        ...

    def check_invariants(self) -> None:
        """Raises `InvariantError` where a stated invariant does not hold. O(frames)."""
        ...

    def report(self, used_tokens: int, num_running: int, num_waiting: int) -> MemoryReport:
        """The pool at this moment, completed with what only the scheduler knows."""
        ...
