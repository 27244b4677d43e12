"""Names for the integers that cross the core's interface, so that a type checker keeps them apart."""

from typing import Final, NewType

RequestId = NewType("RequestId", int)
"""What a client sent, as numbered by the driver: unique for the life of a scheduler, rising in submission order."""

Row = NewType("Row", int)
"""A sequence's place in the per-sequence arrays; reused after the last open plan that names it has committed."""

BlockId = NewType("BlockId", int)
"""A physical frame of the KV pool."""

TimeNs = NewType("TimeNs", int)
"""Integer nanoseconds on the driver's clock; never backwards."""

NO_BLOCK: Final = -1
"""Pads block tables, in arrays only."""
