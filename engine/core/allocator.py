"""What the scheduler asks of memory. Paged memory implements it in `memory.py`; contiguous baselines in `sim/`.

A row is a sequence's place in the tables. Every call is all or nothing: what cannot be served changes nothing.
"""

from enum import Enum
from typing import Protocol

from msgspec import Struct

from engine.core.arrays import I32, I64, Index
from engine.core.content import Content
from engine.core.plan import MemoryReport


class Grant(Enum):
    """Answer to a request for memory."""

    OK = "ok"
    LATER = "later"
    """Not now: frames are held by others."""
    NEVER = "never"
    """Not in an empty pool either."""


class Move(Struct, frozen=True, eq=False):
    """Block copies between pools: `frames[i]` on the device, `hosts[i]` on the host."""

    frames: I32
    hosts: I32


class Allocator(Protocol):
    """KV memory for sequences, addressed by row."""

    block_size: int
    total_blocks: int
    last_hits: int
    """Cached blocks that the last granted admission shared."""
    evicted: list[Index]
    """Frames whose content left the index, until `take_evicted`."""

    @property
    def free_blocks(self) -> int:
        """Frames that can be handed out now: free, or cached and evictable."""
        ...

    @property
    def cached_blocks(self) -> int:
        """Frames without an owner whose content is still findable; `free_blocks` counts them too."""
        ...

    @property
    def shares_content(self) -> bool:
        """Whether any row has content, so that it may publish."""
        ...

    @property
    def keeps_tokens(self) -> bool:
        """Whether any row's content grows with what `accept` is told."""
        ...

    def could_hold(self, num_shared: int, num_tokens: int, num_rows: int) -> bool:
        """Whether `num_rows` sequences of `num_tokens` positions, the first `num_shared` equal, fit when alone."""
        ...

    def longest(self, num_shared: int, num_rows: int) -> int:
        """The most positions that each of `num_rows` sequences can have when alone, the first `num_shared` equal."""
        ...

    def open(
        self, row: int, content: Content | None, salt: str, num_prompt: int, limit: int
    ) -> None:
        """`row` stands for a sequence that starts with `num_prompt` positions of `content` and ends at `limit` tokens; it holds nothing yet."""
        ...

    def close(self, row: int) -> None:
        """The sequence of `row`, which holds nothing, is over."""
        ...

    def accept(self, rows: I32, positions: I32, tokens: I32) -> None:
        """tokens[i] stands at positions[i] of rows[i]: content for blocks to come."""
        ...

    def admit_group(self, members: list[tuple[int, int]], num_shared: int, reserve: int) -> Grant:
        """Gives each (row, known positions) of `members`, which hold nothing, room, and leaves `reserve` frames free.

        Their first `num_shared` positions are equal: full blocks of those are held once, and the first row computes
        them, less what `last_hits` says is cached; of each row at least one position is left to compute.
        """
        ...

    def fork(self, parent: int, child: int, num_tokens: int) -> None:
        """`child`, which is empty, holds the frames of `parent`, whose first `num_tokens` positions are known."""
        ...

    def move(self, rows: list[int], parents: list[int]) -> None:
        """Each of `rows` gives its frames back and holds those that its parent held, all at once."""
        ...

    def short(self, rows: Index, lengths: I32) -> Index:
        """Indices into `rows` of those that cannot yet hold `lengths` positions, ascending. Changes nothing."""
        ...

    def grow(self, rows: Index) -> I32 | None:
        """Gives each of `rows` one more frame; the frames in the same order, or None where not all can be served."""
        ...

    def room_of(self, rows: Index) -> I64:
        """Positions that each of `rows` has frames for: a block more than it needs at most, or all that it will ever need."""
        ...

    def grow_each(self, rows: Index, nth: Index) -> tuple[I32, int]:
        """Gives a frame for each entry of `rows`, in order; all can be served.

        A row may be named several times: its `nth[i]`-th new frame, from 0, in ascending order.

        (frames, how many of the first were free rather than evicted for this).
        """
        ...

    def shares_tail(self, row: int, position: int) -> bool:
        """Whether writing `position` of `row` would write a frame that another sequence holds."""
        ...

    def make_writable(self, row: int, position: int) -> tuple[int, int] | None:
        """Copy-on-write: (source, copy) of the frame for `position`, or None where there is no frame for a copy.

        The source stays referenced until `copied`.
        """
        ...

    def uncopy(self, rows: list[int]) -> list[tuple[int, int, int]]:
        """Takes back the copies of `rows` since the last `take_copies`: (row, source, copy) of each; the sources are shared again."""
        ...

    def copied(self, sources: list[int]) -> None:
        """The copies from `sources` have run: their references go, before those of any row that computed beside the copies."""
        ...

    def publish(self, row: int, num_tokens: int) -> None:
        """Makes the full blocks within `num_tokens` known and computed positions of `row` findable."""
        ...

    def computed(self, positions: I32) -> None:
        """The first positions[row] positions of each row are known and computed: their full blocks can be found."""
        ...

    def silence(self, row: int) -> None:
        """`row` publishes nothing from now on: its computed content is not to be trusted."""
        ...

    def release(self, row: int) -> int:
        """Takes all frames from `row`; how many it held. Later calls find it empty."""
        ...

    def swap_out(self, group: int, members: list[tuple[int, int]]) -> Move | None:
        """Takes all frames from the rows of `members` (row, valid positions) and moves what is valid to the host.

        None, and no change, where the host pool has too few blocks. The frames come back with `moved`.
        """
        ...

    def swap_in(
        self, group: int, members: list[tuple[int, int]], valid: int, reserve: int
    ) -> Move | Grant:
        """Gives the rows of `members` (row, known positions) frames again, and moves in what the index does not have.

        `valid` positions of the first row lie on the host. `Grant.LATER` where the frames are too few.
        """
        ...

    def moved(self, frames: I32) -> None:
        """A transfer that touched `frames` is over: its references go."""
        ...

    def forget(self, group: int) -> None:
        """What `group` has on the host is not needed any more."""
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

    def take_copies(self) -> list[tuple[int, int]]:
        """(source, copy) of the copy-on-writes since the last take, to run before the step that follows."""
        ...

    def take_evicted(self) -> tuple[int, ...]:
        """Frames whose content left the index since the last take, in order."""
        ...

    def check_invariants(self) -> None:
        """Raises `InvariantError` where a stated invariant does not hold. O(frames)."""
        ...

    def report(
        self, computed: I32, num_running: int, num_waiting: int, num_swapped: int
    ) -> MemoryReport:
        """The pool at this moment; `computed[row]` positions of each row hold a token state."""
        ...
