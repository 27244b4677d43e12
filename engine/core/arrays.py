"""Names for the array types of the core: one dtype each, any shape."""

import numpy as np
from numpy.typing import NDArray

I8 = NDArray[np.int8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]
Index = NDArray[np.intp]
"""Rows or entries to look up: a tenth of the time of a look-up by 32-bit integers."""

ONE: I32 = np.array(1, np.int32)
"""Adds in half the time of a Python integer."""
ONE.setflags(write=False)


_ALL: list[tuple[I32, Bools]] = []


def ones(size: int) -> tuple[I32, Bools]:
    """([size] of 1, [size] of True), read-only: parts of arrays that are kept, since every step of decodes has them."""
    if not _ALL or size > len(_ALL[0][0]):
        counts, truths = filled(2 * size, 1), np.ones(2 * size, np.bool_)
        counts.setflags(write=False)
        truths.setflags(write=False)
        _ALL[:] = [(counts, truths)]
    counts, truths = _ALL[0]
    return counts[:size], truths[:size]


def filled(size: int, value: int) -> I32:
    """[size] of one value; a third of the time of `np.full`, and of `np.ones`."""
    array: I32 = np.empty(size, np.int32)
    array.fill(value)
    return array
