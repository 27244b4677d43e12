"""The decision log: what the core decided, in the order it decided it.

Records carry step numbers and no time, hold ints, strings and tuples only, and compare by value: the same calls give the
same log, bit for bit. `step` is the number of the plan being made, or of the plan being committed, or, for what happens
between (an abort), of the plan that will be made next.
"""

from msgspec import Struct


class Admitted(Struct, frozen=True, tag="admit"):
    """`request` was given frames for all its known tokens, in logical order."""

    step: int
    request: int
    row: int
    blocks: tuple[int, ...]


class Grew(Struct, frozen=True, tag="grow"):
    """Each of `rows`, in running order, was given one more frame."""

    step: int
    rows: tuple[int, ...]
    blocks: tuple[int, ...]


class Preempted(Struct, frozen=True, tag="preempt"):
    """`request` stops running so that an older one can grow; `num_tokens` positions will be computed again."""

    step: int
    request: int
    row: int
    num_tokens: int


class Released(Struct, frozen=True, tag="release"):
    """`row` gave its frames back."""

    step: int
    row: int
    num_blocks: int


class Ended(Struct, frozen=True, tag="end"):
    """`request` ended; `reason` is a `Finish`. Each request has one such record, and none after it but a release."""

    step: int
    request: int
    reason: int


Record = Admitted | Grew | Preempted | Released | Ended
