"""Activations in int8, laid out for the dot-product tiles: quantised, normalised, activated.

A *panel* holds 8 rows of K activations as K / 32 records, each with everything that the tiles need for one group of 32:

    256 bytes  int8 [8, 32]: round(x / scale), scale = max|x| / 127 over the row's group
     32 bytes  float32 [8]: scale
     32 bytes  float32 [8]: scale * sum of the row's int8 (pairs with a weight group's minimum)
     32 bytes  int32 [8]: -128 * sum of the row's int8 (undoes the offset of weights stored as unsigned bytes)

A row's record depends on that row alone, so results do not depend on which rows share a step. A row that holds a
not-a-number or an infinity gets a scale that is not a number, and so it surfaces in whatever is computed from the panel.
Knows no weights and no threads: functions take addresses and row numbers.
"""

import numba
import numpy as np

from kernels.cpu import simd
from kernels.cpu.simd import add, div, exp, fma, iadd, itotal, loadf, mul, peak

ROWS = 8
GROUP = 32
RECORD = ROWS * GROUP + 3 * 4 * ROWS
SCALES, SUMS, OFFSETS = ROWS * GROUP, ROWS * GROUP + 4 * ROWS, ROWS * GROUP + 8 * ROWS
"""Byte offsets within a record."""


def panel_bytes(rows: int, width: int) -> int:
    """Bytes of the panels of `rows` rows of `width` activations; `width` is a multiple of 32."""
    return -(-rows // ROWS) * (width // GROUP) * RECORD


@numba.njit(nogil=True)
def row_record(panel, row, groups):
    """Address of the first record of `row`'s panel."""
    return panel + (row >> 3) * groups * RECORD


@numba.njit(nogil=True)
def quantise_group(low, high, record, lane):
    """Writes 32 activations, two vectors, as row `lane` (0..7) of a record."""
    top = peak(low, high)
    scale = top * np.float32(1 / 127)
    inverse = np.float32(127.0) / top if top > np.float32(1e-30) else np.float32(0.0)
    a = simd.to_int(mul(low, simd.splatf(inverse)))
    b = simd.to_int(mul(high, simd.splatf(inverse)))
    simd.store_bytes(record + GROUP * lane, a)
    simd.store_bytes(record + GROUP * lane + 16, b)
    whole = itotal(iadd(a, b))
    simd.store_f32(record + SCALES + 4 * lane, scale)
    simd.store_f32(record + SUMS + 4 * lane, scale * np.float32(whole))
    simd.store_i32(record + OFFSETS + 4 * lane, -128 * whole)


@numba.njit(nogil=True)
def quantise_row(source, groups, panel, row):
    """Quantises a row of `32 * groups` float32."""
    record, lane = row_record(panel, row, groups), row & 7
    for g in range(groups):
        quantise_group(
            loadf(source + 128 * g), loadf(source + 128 * g + 64), record + RECORD * g, lane
        )


@numba.njit(nogil=True)
def normalise_row(source, weight, epsilon, groups, panel, row):
    """RMSNorm of a row of `32 * groups` float32, times `weight`, quantised. Source: Zhang and Sennrich 2019, eq. 4."""
    squares = simd.splatf(np.float32(0.0))
    for i in range(2 * groups):
        x = loadf(source + 64 * i)
        squares = fma(x, x, squares)
    mean = simd.total(squares) / np.float32(GROUP * groups)
    factor = simd.splatf(np.float32(1.0) / np.sqrt(mean + epsilon))
    record, lane = row_record(panel, row, groups), row & 7
    for g in range(groups):
        low = mul(mul(loadf(source + 128 * g), factor), loadf(weight + 128 * g))
        high = mul(mul(loadf(source + 128 * g + 64), factor), loadf(weight + 128 * g + 64))
        quantise_group(low, high, record + RECORD * g, lane)


@numba.njit(nogil=True)
def swish_product(gate, up):
    """`gate * sigmoid(gate) * up` of two vectors. Source: Shazeer 2020, SwiGLU."""
    one = simd.splatf(np.float32(1.0))
    return mul(div(gate, add(one, exp(simd.sub(simd.splatf(np.float32(0.0)), gate)))), up)
