"""Loads, stores and arithmetic that kernels call: vectors and scalars at raw addresses.

Addresses are int64, offsets are bytes, nothing is aligned and nothing is checked: callers own the bounds. Knows no tensors.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from kernels.cpu.vectors import (
    F16,
    F32,
    HAS_AVX512,
    HAS_BF16,
    I8,
    I16,
    I32,
    I64,
    LANES,
    VF,
    VI,
    address,
    at,
    call,
    constant,
    f32,
    f_type,
    i_type,
    int64,
    multiply_add,
    op,
    splat,
    void,
)


def _store(builder: Any, base: Any, value: Any) -> None:
    builder.store(value, at(builder, base), align=1)


@op(f_type, address)
def loadf(b: Any, base: Any) -> Any:
    """16 float32."""
    return b.load(at(b, base), typ=VF, align=1)


@op(i_type, address)
def loadi(b: Any, base: Any) -> Any:
    """16 int32."""
    return b.load(at(b, base), typ=VI, align=1)


@op(f_type, address)
def bcastf(b: Any, base: Any) -> Any:
    """One float32 in every lane."""
    return splat(b, b.load(at(b, base), typ=F32, align=1))


@op(f32, address)
def load_f32(b: Any, base: Any) -> Any:
    """A float32."""
    return b.load(at(b, base), typ=F32, align=1)


@op(f32, address)
def load_half(b: Any, base: Any) -> Any:
    """A float16, widened."""
    return b.fpext(b.load(at(b, base), typ=F16, align=1), F32)


@op(int64, address)
def load_u8(b: Any, base: Any) -> Any:
    """An unsigned byte."""
    return b.zext(b.load(at(b, base), typ=I8, align=1), I64)


@op(int64, address)
def load_i16(b: Any, base: Any) -> Any:
    """An int16."""
    return b.sext(b.load(at(b, base), typ=I16, align=1), I64)


@op(int64, address)
def load_i32(b: Any, base: Any) -> Any:
    """An int32."""
    return b.sext(b.load(at(b, base), typ=I32, align=1), I64)


@op(int64, address)
def load_i64(b: Any, base: Any) -> Any:
    """An int64."""
    return b.load(at(b, base), typ=I64, align=1)


@op(void, address, f_type)
def storef(b: Any, base: Any, value: Any) -> None:
    """16 float32."""
    _store(b, base, value)


@op(void, address, i_type)
def storei(b: Any, base: Any, value: Any) -> None:
    """16 int32."""
    _store(b, base, value)


@op(void, address, f32)
def store_f32(b: Any, base: Any, value: Any) -> None:
    """A float32."""
    _store(b, base, value)


@op(void, address, int64)
def store_i32(b: Any, base: Any, value: Any) -> None:
    """The low 32 bits."""
    _store(b, base, b.trunc(value, I32))


@op(void, address, int64)
def store_i16(b: Any, base: Any, value: Any) -> None:
    """The low 16 bits."""
    _store(b, base, b.trunc(value, I16))


@op(void, address, int64)
def store_i64(b: Any, base: Any, value: Any) -> None:
    """An int64."""
    _store(b, base, value)


@op(void, address, i_type)
def store_bytes(b: Any, base: Any, value: Any) -> None:
    """The low byte of each lane."""
    _store(b, base, b.trunc(value, ir.VectorType(I8, LANES)))


@op(f_type, f32)
def splatf(b: Any, value: Any) -> Any:
    """A scalar in every lane."""
    return splat(b, value)


@op(i_type, int64)
def splati(b: Any, value: Any) -> Any:
    """The low 32 bits in every lane."""
    return splat(b, b.trunc(value, I32))


@op(i_type)
def iota(_b: Any) -> Any:
    """0, 1, ..., 15."""
    return ir.Constant(VI, list(range(LANES)))


@op(f_type, f_type, f_type, f_type)
def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """`x * y + z`, rounded once."""
    return multiply_add(b, x, y, z)


@op(f_type, f_type, f_type)
def add(b: Any, x: Any, y: Any) -> Any:
    """`x + y`."""
    return b.fadd(x, y)


@op(f_type, f_type, f_type)
def sub(b: Any, x: Any, y: Any) -> Any:
    """`x - y`."""
    return b.fsub(x, y)


@op(f_type, f_type, f_type)
def mul(b: Any, x: Any, y: Any) -> Any:
    """`x * y`."""
    return b.fmul(x, y)


@op(f_type, f_type, f_type)
def div(b: Any, x: Any, y: Any) -> Any:
    """`x / y`."""
    return b.fdiv(x, y)


@op(f_type, f_type, f_type)
def maximum(b: Any, x: Any, y: Any) -> Any:
    """The larger; `y` where either is not a number."""
    return _larger(b, x, y)


@op(i_type, i_type, i_type)
def iadd(b: Any, x: Any, y: Any) -> Any:
    """`x + y`."""
    return b.add(x, y)


@op(i_type, i_type, i_type)
def iand(b: Any, x: Any, y: Any) -> Any:
    """Bitwise and."""
    return b.and_(x, y)


@op(f_type, i_type, i_type, f_type, f_type)
def where_less(b: Any, x: Any, y: Any, then: Any, otherwise: Any) -> Any:
    """`then` in the lanes where x < y, else `otherwise`."""
    return b.select(b.icmp_signed("<", x, y), then, otherwise)


@op(i_type, f_type)
def to_int(b: Any, x: Any) -> Any:
    """Nearest integer, ties to even; undefined beyond int32."""
    return b.fptosi(call(b, "llvm.nearbyint.v16f32", VF, x), VI)


@op(void, address, f_type)
def store_bf16(b: Any, base: Any, value: Any) -> None:
    """16 bf16, ties to even; not-a-number stays one. Numbers below 2**-126 become 0 where the host converts by itself."""
    half = ir.VectorType(I16, LANES)
    if HAS_BF16:
        _store(b, base, call(b, "llvm.x86.avx512bf16.cvtneps2bf16.512", half, value))
        return
    bits = b.bitcast(value, VI)
    odd = b.and_(b.lshr(bits, constant(VI, 16)), constant(VI, 1))
    rounded = b.lshr(b.add(b.add(bits, constant(VI, 0x7FFF)), odd), constant(VI, 16))
    quiet = b.or_(b.lshr(bits, constant(VI, 16)), constant(VI, 0x40))
    _store(b, base, b.trunc(b.select(b.fcmp_unordered("uno", value, value), quiet, rounded), half))


@op(f32, f_type)
def total(b: Any, x: Any) -> Any:
    """Sum of the lanes, by halving: one order, whatever the host."""
    return _fold(b, x, lambda p, q: b.fadd(p, q))


@op(f32, f_type, f_type)
def peak(b: Any, x: Any, y: Any) -> Any:
    """The largest |lane| of two vectors; not a number where any is not one (as bits, those are larger than all numbers)."""
    low, high = (b.and_(b.bitcast(v, VI), constant(VI, 0x7FFFFFFF)) for v in (x, y))
    top = call(b, "llvm.umax.v16i32", VI, low, high)
    return b.bitcast(call(b, "llvm.vector.reduce.umax.v16i32", I32, top), F32)


@op(int64, i_type)
def itotal(b: Any, x: Any) -> Any:
    """Sum of the lanes."""
    return b.sext(call(b, "llvm.vector.reduce.add.v16i32", I32, x), I64)


@op(f32, f_type)
def largest(b: Any, x: Any) -> Any:
    """The largest lane that is a number."""
    return _fold(b, x, lambda p, q: _larger(b, p, q))


@op(f32, f_type)
def first(b: Any, x: Any) -> Any:
    """Lane 0."""
    return b.extract_element(x, I32(0))


def _larger(b: Any, x: Any, y: Any) -> Any:
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def _fold(b: Any, x: Any, combine: Callable[[Any, Any], Any]) -> Any:
    width = LANES
    while width > 1:
        width //= 2
        low, high = (
            ir.Constant(ir.VectorType(I32, width), list(range(s, s + width))) for s in (0, width)
        )
        undefined = ir.Constant(x.type, ir.Undefined)
        x = combine(b.shuffle_vector(x, undefined, low), b.shuffle_vector(x, undefined, high))
    return b.extract_element(x, I32(0))


@op(f_type, f_type)
def exp(b: Any, x: Any) -> Any:
    """Exponential, within 2 ulp for -87 <= x <= 88, that of 88 above; exactly 0 below -104 (a masked -inf weighs nothing).

    Cody-Waite reduction by ln 2 in two parts, then Taylor to degree 7 on [-ln2/2, ln2/2], where the remainder r**8/40320 is
    under 6e-9. Not-a-number comes through.
    """
    for sign, limit in ((">", 88.0), ("<", -110.0)):
        bound = constant(VF, limit)
        x = b.select(b.fcmp_ordered(sign, x, bound), bound, x)
    n = call(b, "llvm.nearbyint.v16f32", VF, b.fmul(x, constant(VF, 1.4426950408889634)))
    r = multiply_add(b, n, constant(VF, -0.693359375), x)
    r = multiply_add(b, n, constant(VF, 2.12194440054690583e-4), r)
    y = constant(VF, 1 / 5040)
    for coefficient in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        y = multiply_add(b, y, r, constant(VF, coefficient))
    if HAS_AVX512:
        zeros, all_lanes, nearest = constant(VF, 0.0), ir.Constant(I16, -1), I32(4)
        return call(b, "llvm.x86.avx512.mask.scalef.ps.512", VF, y, n, zeros, all_lanes, nearest)
    whole = b.fptosi(n, VI)
    for part in (b.ashr(whole, constant(VI, 1)), b.sub(whole, b.ashr(whole, constant(VI, 1)))):
        y = b.fmul(y, b.bitcast(b.shl(b.add(part, constant(VI, 127)), constant(VI, 23)), VF))
    return y
