"""Register tiles of attention: scores of 16 keys, and weighted sums over values of 16 channels, for 1 to 8 query rows.

Same shape as a small matrix product: one vector of the cache is read once and used by every row. In bf16 both take pairs of
numbers, with float32 sums; in float32 they take one at a time. Layouts are those of `cache.py`. Both ask for cache lines that will be
read soon, since blocks lie scattered and the hardware cannot guess the next.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from kernels.cpu.vectors import (
    F32,
    I8,
    I32,
    I64,
    VF,
    VI,
    address,
    at,
    constant,
    dot2_bf16,
    fetch,
    int64,
    multiply_add,
    op,
    splat,
    switch,
    void,
)

EIGHT = ir.VectorType(I32, 8)
ROWS_BF16, ROWS_FP32 = (1, 2, 3, 4, 8), (1, 2, 4, 8)


def _cases(b: Any, kind: Any, rows: Any, emit: Callable[[bool, int], None]) -> None:
    """Emits every (kind, rows) that `take_rows` can ask for, and picks at run time. Kind 0 is bf16, 1 is float32."""
    cases: dict[int, Callable[[], None]] = {}
    for base, bf16, sizes in ((0, True, ROWS_BF16), (16, False, ROWS_FP32)):
        for size in sizes:
            cases[base + size] = partial(emit, bf16, size)
    switch(b, b.add(b.mul(kind, I64(16)), rows), cases)


class _Sums:
    """Two registers for each row, used in turn, and a pointer to each row's operand and result.

    One register would have each addition wait for the one before it, which takes longer than reading the cache.
    """

    def __init__(self, b: Any, bf16: bool, rows: int, operands: Any, stride: Any) -> None:
        self._b, self._bf16 = b, bf16
        self._sums = [[cgutils.alloca_once(b, VF) for _ in range(rows)] for _ in range(2)]
        for total in (*self._sums[0], *self._sums[1]):
            b.store(constant(VF, 0.0), total)
        self._operands = [at(b, b.add(operands, b.mul(stride, I64(r)))) for r in range(rows)]

    def add(self, turn: int, vector: Any, offset: Any) -> None:
        """Adds the cache's `vector` times the number (or pair) at byte `offset` of each row's operand to register `turn`, 0 or 1."""
        b = self._b
        for total, operand in zip(self._sums[turn], self._operands, strict=True):
            place = b.gep(operand, [offset], source_etype=I8)
            if self._bf16:
                pair = splat(b, b.load(place, typ=I32, align=4))
                b.store(dot2_bf16(b, b.load(total), vector, pair), total)
            else:
                one = splat(b, b.load(place, typ=F32, align=4))
                b.store(multiply_add(b, b.bitcast(vector, VF), one, b.load(total)), total)

    def put(self, out: Any, stride: Any) -> None:
        """Stores each row's sums, rows `stride` bytes apart."""
        b = self._b
        for r, (even, odd) in enumerate(zip(*self._sums, strict=True)):
            place = at(b, b.add(out, b.mul(stride, I64(r))))
            b.store(b.fadd(b.load(even), b.load(odd)), place, align=4)


@op(void, int64, int64, address, address, address, address, address, int64, int64, address, int64)
def score(
    b: Any,
    kind: Any,
    rows: Any,
    low: Any,
    high: Any,
    low_ahead: Any,
    high_ahead: Any,
    queries: Any,
    stride: Any,
    head_dim: Any,
    out: Any,
    out_stride: Any,
) -> None:
    """Writes out[r, 0:8] = queries[r] . the 8 keys of subtile `low`, out[r, 8:16] of `high`; asks for the `ahead` subtiles meanwhile."""

    def emit(bf16: bool, count: int) -> None:
        sums = _Sums(b, bf16, count, queries, stride)
        both = ir.Constant(ir.VectorType(I32, 16), list(range(16)))
        with cgutils.for_range(b, b.lshr(head_dim, I64(2 if bf16 else 1))) as loop:
            line, operand = b.shl(loop.index, I64(6)), b.shl(loop.index, I64(3))
            for turn, ahead in enumerate((low_ahead, high_ahead)):
                byte = b.add(line, I64(32 * turn))
                halves = [b.load(at(b, b.add(x, byte)), typ=EIGHT, align=4) for x in (low, high)]
                fetch(b, b.add(ahead, line))
                sums.add(turn, b.shuffle_vector(*halves, both), b.add(operand, I64(4 * turn)))
        sums.put(out, out_stride)

    _cases(b, kind, rows, emit)


@op(void, int64, int64, address, address, int64, int64, int64, address, int64, address, int64)
def mix(
    b: Any,
    kind: Any,
    rows: Any,
    subtiles: Any,
    ahead: Any,
    count: Any,
    byte: Any,
    row_bytes: Any,
    weights: Any,
    stride: Any,
    out: Any,
    out_stride: Any,
) -> None:
    """Writes out[r] = weights[r] @ 16 channels, from `byte` on, of the values listed.

    `subtiles` lists `count` addresses of 8 positions each; `row_bytes` is the distance of one vector's worth of positions (a
    pair in bf16, one in float32) to the next. `ahead` lists as many subtiles to ask for meanwhile: after a call for every 16
    channels, all of their lines.
    """

    def emit(bf16: bool, size: int) -> None:
        sums = _Sums(b, bf16, size, weights, stride)
        vectors = 4 if bf16 else 8
        with cgutils.for_range(b, count) as loop:
            place = b.shl(loop.index, I64(3))
            now, coming = (
                b.load(at(b, b.add(x, place)), typ=I64, align=8) for x in (subtiles, ahead)
            )
            base, lines = b.add(now, byte), b.add(coming, b.mul(byte, I64(vectors)))
            for v in range(vectors):
                fetch(b, b.add(lines, I64(64 * v)))
                values = b.load(at(b, b.add(base, b.mul(row_bytes, I64(v)))), typ=VI, align=4)
                sums.add(v % 2, values, b.add(b.mul(loop.index, I64(4 * vectors)), I64(4 * v)))
        sums.put(out, out_stride)

    _cases(b, kind, rows, emit)
