"""Register tiles of attention: scores of 16 keys, and weighted sums over values of 16 channels, for 1 to 8 query rows.

Same shape as a small matrix product: one vector of the cache is read once and used by every row. In bf16 both take pairs of
numbers, with float32 sums; in float32 they take one at a time. Layouts are those of `cache.py`.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from kernels.cpu.simd import (
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
    int64,
    multiply_add,
    op,
    splat,
    void,
)

EIGHT = ir.VectorType(I32, 8)


def _row_pointers(b: Any, base: Any, stride: Any, rows: int) -> list[Any]:
    return [at(b, b.add(base, b.mul(stride, I64(r)))) for r in range(rows)]


def _accumulate(b: Any, bf16: bool, total: Any, vector: Any, pointer: Any, offset: Any) -> Any:
    """`total` plus the cache vector times the query's (or weight's) number or pair at `pointer + offset`."""
    place = b.gep(pointer, [offset], source_etype=I8)
    if bf16:
        return dot2_bf16(b, total, vector, splat(b, b.load(place, typ=I32, align=4)))
    return multiply_add(b, b.bitcast(vector, VF), splat(b, b.load(place, typ=F32, align=4)), total)


def _score(bf16: bool, rows: int) -> Any:
    """`(keys a, keys b, queries, query stride, steps, out, out stride)`: out[r, 0:8] and [8:16] are the dot products with a and b.

    A step is a pair of channels in bf16 and a channel in float32: 32 bytes of either subtile.
    """

    @op(void, address, address, address, int64, int64, address, int64)
    def emit(
        b: Any,
        low: Any,
        high: Any,
        queries: Any,
        stride: Any,
        steps: Any,
        out: Any,
        out_stride: Any,
    ) -> None:
        sums = [cgutils.alloca_once_value(b, constant(VF, 0.0)) for _ in range(rows)]
        pointers = _row_pointers(b, queries, stride, rows)
        both = ir.Constant(ir.VectorType(I32, 16), list(range(16)))
        with cgutils.for_range(b, steps) as loop:
            byte = b.mul(loop.index, I64(32))
            halves = [b.load(at(b, b.add(base, byte)), typ=EIGHT, align=4) for base in (low, high)]
            keys = b.shuffle_vector(*halves, both)
            offset = b.mul(loop.index, I64(4))
            for total, pointer in zip(sums, pointers, strict=True):
                b.store(_accumulate(b, bf16, b.load(total), keys, pointer, offset), total)
        for total, pointer in zip(sums, _row_pointers(b, out, out_stride, rows), strict=True):
            b.store(b.load(total), pointer, align=4)

    return emit


def _mix(bf16: bool, rows: int) -> Any:
    """`(subtiles, count, channel byte, row bytes, weights, weight stride, out, out stride)`: out[r] = weights[r] @ values.

    `subtiles` lists `count` addresses of 8 positions each; `row bytes` is the distance of one vector's worth of positions (a
    pair in bf16, one in float32) to the next.
    """
    vectors = 4 if bf16 else 8

    @op(void, address, int64, int64, int64, address, int64, address, int64)
    def emit(
        b: Any,
        subtiles: Any,
        count: Any,
        byte: Any,
        row_bytes: Any,
        weights: Any,
        stride: Any,
        out: Any,
        out_stride: Any,
    ) -> None:
        sums = [cgutils.alloca_once_value(b, constant(VF, 0.0)) for _ in range(rows)]
        pointers = _row_pointers(b, weights, stride, rows)
        with cgutils.for_range(b, count) as loop:
            listed = b.load(at(b, b.add(subtiles, b.mul(loop.index, I64(8)))), typ=I64, align=8)
            base = b.add(listed, byte)
            for v in range(vectors):
                values = b.load(at(b, b.add(base, b.mul(row_bytes, I64(v)))), typ=VI, align=4)
                offset = b.add(b.mul(loop.index, I64(4 * vectors)), I64(4 * v))
                for total, pointer in zip(sums, pointers, strict=True):
                    b.store(_accumulate(b, bf16, b.load(total), values, pointer, offset), total)
        for total, pointer in zip(sums, _row_pointers(b, out, out_stride, rows), strict=True):
            b.store(b.load(total), pointer, align=4)

    return emit


score_bf16_1, score_bf16_2, score_bf16_3, score_bf16_4, score_bf16_8 = (
    _score(True, r) for r in (1, 2, 3, 4, 8)
)
score_f32_1, score_f32_2, score_f32_4, score_f32_8 = (_score(False, r) for r in (1, 2, 4, 8))
mix_bf16_1, mix_bf16_2, mix_bf16_3, mix_bf16_4, mix_bf16_8 = (
    _mix(True, r) for r in (1, 2, 3, 4, 8)
)
mix_f32_1, mix_f32_2, mix_f32_4, mix_f32_8 = (_mix(False, r) for r in (1, 2, 4, 8))
