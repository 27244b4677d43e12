"""The decision log: what the core decided, in the order it decided it.

Records carry step numbers and no time, hold ints, strings and tuples only, and compare by value: the same calls give the
same log, bit for bit. `step` is the number of the plan being made, or of the plan being committed, or, for what happens
between (an abort, a finished transfer), of the plan that will be made next.
"""

from msgspec import Struct


class Admitted(Struct, frozen=True, tag="admit"):
    """The sequence of `row` was given `blocks` in logical order; the first `shared` of them were in use or cached."""

    step: int
    request: int
    row: int
    blocks: tuple[int, ...]
    shared: int


class Forked(Struct, frozen=True, tag="fork"):
    """`children` share all blocks of `row`."""

    step: int
    row: int
    children: tuple[int, ...]


class Reparented(Struct, frozen=True, tag="reparent"):
    """Beam search: each of `rows` goes on with the blocks that `parents` had, all at once."""

    step: int
    rows: tuple[int, ...]
    parents: tuple[int, ...]


class Grew(Struct, frozen=True, tag="grow"):
    """Each of `rows`, in running order, was given one more frame."""

    step: int
    rows: tuple[int, ...]
    blocks: tuple[int, ...]


class Copied(Struct, frozen=True, tag="copy"):
    """Copy-on-write: `row` writes to `target`, a copy of `source`, from now on."""

    step: int
    row: int
    source: int
    target: int


class Uncopied(Struct, frozen=True, tag="uncopy"):
    """A copy that no plan carried yet is taken back: `row` shares `source` again, and `target` is free."""

    step: int
    row: int
    source: int
    target: int


class Evicted(Struct, frozen=True, tag="evict"):
    """Cached content left the index, least recently used first, to serve what follows in the log."""

    step: int
    blocks: tuple[int, ...]


class Preempted(Struct, frozen=True, tag="preempt"):
    """`request` stops running so that `asking` can grow, which may be itself. Estimates are 0 where the mode was given, not chosen."""

    step: int
    request: int
    mode: str
    """`recompute` or `swap`."""
    num_tokens: int
    """Known positions of its sequences: what recompute computes again, less what stays cached."""
    swap_ns: int
    recompute_ns: int
    asking: int
    """The request that needed a frame."""


class SwapStarted(Struct, frozen=True, tag="swap"):
    """Transfer `transfer` of `num_blocks` blocks of `request` begins; `direction` is `out` or `in`."""

    step: int
    request: int
    direction: str
    transfer: int
    num_blocks: int


class SwapEnded(Struct, frozen=True, tag="swapped"):
    """Transfer `transfer` is over; a failed or refused one leaves its request to recompute. Refused: transfer is -1."""

    step: int
    request: int
    transfer: int
    ok: bool


class Released(Struct, frozen=True, tag="release"):
    """`row` gave its frames back."""

    step: int
    row: int
    num_blocks: int


class Ended(Struct, frozen=True, tag="end"):
    """Sequence `index` of `request` ended; `reason` is a `Finish`. -1: all that were left."""

    step: int
    request: int
    index: int
    reason: int


Record = (
    Admitted
    | Forked
    | Reparented
    | Grew
    | Copied
    | Uncopied
    | Evicted
    | Preempted
    | SwapStarted
    | SwapEnded
    | Released
    | Ended
)
