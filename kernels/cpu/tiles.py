"""Dot-product tiles: 16 outputs of a quantised weight times 1 to 8 rows of a panel, in int8 with float32 accumulation.

Packed weights, for outputs in tiles of 16 and inputs in groups of 32 (`groups` of them), tile after tile:

    Q4: 256 bytes a group, vector j lane n: inputs 8j..8j+3 of output n in the low nibbles of four bytes, 8j+4..8j+7 in the high;
        beside it 64 bytes: float16 [16] scales, float16 [16] minimums.          w = scale * q + minimum,  q in 0..15
    Q8: 512 bytes a group, vector j lane n: inputs 4j..4j+3 of output n, each stored as q + 128;
        beside it 32 bytes: float16 [16] scales.                                 w = scale * q,            q in -128..127

Every output is, for each group in order, one exact integer sum, then one or two rounded multiply-adds; the number of rows in the
tile changes nothing in it. So a row's results are the same bits in every batch.

Traffic of a tile: each weight byte is read once per 8 rows; at one row that is 320 (Q4) or 544 (Q8) bytes for 512 products.
"""

from functools import partial
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from kernels.cpu.panels import GROUP, OFFSETS, RECORD, SCALES, SUMS
from kernels.cpu.vectors import (
    F16,
    F32,
    I8,
    I32,
    I64,
    LANES,
    VF,
    VI,
    address,
    at,
    constant,
    dot4_u8s8,
    int64,
    multiply_add,
    op,
    splat,
    switch,
    void,
)

TILE = LANES
Q4_BYTES, Q4_EXTRA = 256, 64
Q8_BYTES, Q8_EXTRA = 512, 32
HALVES = ir.VectorType(F16, LANES)


def _emit(
    b: Any, bits: int, rows: int, weights: Any, extra: Any, records: Any, groups: Any, out: Any
) -> None:
    """One tile: a loop over groups, with a register for each row's running sum."""
    size, extra_size = (Q4_BYTES, Q4_EXTRA) if bits == 4 else (Q8_BYTES, Q8_EXTRA)
    sums = [cgutils.alloca_once_value(b, constant(VF, 0.0)) for _ in range(rows)]
    with cgutils.for_range(b, groups) as loop:
        quants, scales, record = (
            at(b, b.add(base, b.mul(loop.index, I64(step))))
            for base, step in ((weights, size), (extra, extra_size), (records, RECORD))
        )

        def load(base: Any, offset: int, kind: Any, align: int) -> Any:
            return b.load(b.gep(base, [I64(offset)], source_etype=I8), typ=kind, align=align)

        def lane(offset: int, kind: Any) -> Any:
            return splat(b, load(record, offset, kind, 4))

        dots = [constant(VI, 0) if bits == 4 else lane(OFFSETS + 4 * r, I32) for r in range(rows)]
        for j in range(GROUP // 4):
            if bits == 8:
                w = load(quants, 64 * j, VI, 64)
            elif j % 2 == 0:
                packed = load(quants, 32 * j, VI, 64)
                w = b.and_(packed, constant(VI, 0x0F0F0F0F))
            else:
                w = b.and_(b.lshr(packed, constant(VI, 4)), constant(VI, 0x0F0F0F0F))
            for r in range(rows):
                dots[r] = dot4_u8s8(b, dots[r], w, lane(GROUP * r + 4 * j, I32))
        scale = b.fpext(load(scales, 0, HALVES, 32), VF)
        for r in range(rows):
            y = b.load(sums[r])
            y = multiply_add(b, b.sitofp(dots[r], VF), b.fmul(scale, lane(SCALES + 4 * r, F32)), y)
            if bits == 4:
                minimum = b.fpext(load(scales, 32, HALVES, 32), VF)
                y = multiply_add(b, minimum, lane(SUMS + 4 * r, F32), y)
            b.store(y, sums[r])
    for r in range(rows):
        b.store(b.load(sums[r]), at(b, out, 4 * TILE * r), align=4)


@op(void, int64, int64, address, address, address, int64, address)
def product(
    b: Any, bits: Any, rows: Any, weights: Any, extra: Any, records: Any, groups: Any, out: Any
) -> None:
    """Writes out float32 [rows, 16] = the first `rows` (1, 2, 4 or 8) rows of a panel times the 16 outputs of a weight of 4 or 8 `bits`.

    `weights` and `extra` are a tile's, `records` a panel's first record.
    """
    cases = {
        16 * kind + size: partial(_emit, b, kind, size, weights, extra, records, groups, out)
        for kind in (4, 8)
        for size in (1, 2, 4, 8)
    }
    switch(b, b.add(b.mul(bits, I64(16)), rows), cases)
