"""Vectors of 16 lanes as Numba values, and loads, stores and arithmetic on raw addresses.

Numba's vectoriser does not find 4-bit dot products, so the kernels of this package are written with explicit vectors: `F` is
16 float32, `I` is 16 int32. Both are LLVM vectors: they live in registers, and where a host lacks the width or an
instruction LLVM splits or expands. Only `dot4` (u8 x s8) and `dot2` (bf16 pairs) name an instruction, where the host has it;
both have a plain expansion.

Addresses are int64, offsets are bytes, nothing is aligned and nothing is checked: callers own the bounds. Knows no tensors.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

LANES = 16
F32, F16 = ir.FloatType(), ir.HalfType()
I64, I32, I16, I8, I1 = (ir.IntType(bits) for bits in (64, 32, 16, 8, 1))
VF, VI = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
POINTER = ir.PointerType()

FEATURES = llvm.get_host_cpu_features()
HAS_AVX512 = bool(FEATURES.get("avx512f", False))
HAS_VNNI = bool(FEATURES.get("avx512vnni", False))
HAS_BF16 = bool(FEATURES.get("avx512bf16", False))


class _Vector(types.Type):
    """Numba's name for a vector value."""


class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, VF if numba_type == f_type else VI)


f_type, i_type = _Vector("simd.F"), _Vector("simd.I")
register_model(_Vector)(_VectorModel)
address, int64, f32, void = types.int64, types.int64, types.float32, types.void


def op(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Turns `emit(builder, *values) -> value | None` into a Numba intrinsic of these types."""

    def wrap(emit: Callable[..., Any]) -> Any:
        def typing(_context: Any, *actual: Any) -> Any:
            for have, want in zip(actual, arguments, strict=True):
                if (isinstance(have, _Vector) or isinstance(want, _Vector)) and have != want:
                    return None

            def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
                value = emit(builder, *values)
                return context.get_dummy_value() if value is None else value

            return result(*arguments), codegen

        positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = ["context", *(f"a{i}" for i in range(len(arguments)))]
        typing.__name__ = emit.__name__
        typing.__doc__ = emit.__doc__
        typing.__signature__ = inspect.Signature([inspect.Parameter(n, positional) for n in names])  # type: ignore[attr-defined]
        return intrinsic(typing)

    return wrap


def at(builder: Any, base: Any, offset: int = 0) -> Any:
    """LLVM pointer `offset` bytes after the address `base`."""
    start = builder.inttoptr(base, POINTER)
    return builder.gep(start, [I64(offset)], source_etype=I8) if offset else start


def splat(builder: Any, value: Any) -> Any:
    """A vector whose lanes all hold `value`."""
    vector = ir.VectorType(value.type, LANES)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, I32(0))
    lanes = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), lanes)


def constant(vector: Any, value: float) -> Any:
    """A constant vector of equal lanes."""
    return ir.Constant(vector, [value] * LANES)


def call(builder: Any, name: str, result: Any, *values: Any) -> Any:
    """Calls an LLVM intrinsic by its full name."""
    signature = ir.FunctionType(result, [v.type for v in values])
    function = builder.module.globals.get(name) or ir.Function(builder.module, signature, name)
    return builder.call(function, values)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """`a * b + c`, rounded once."""
    return call(builder, "llvm.fma.v16f32", VF, a, b, c)


def dot4_u8s8(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    """`total[i] + sum over the four bytes of lane i of unsigned * signed`; exact while it fits int32."""
    if HAS_VNNI:
        return call(builder, "llvm.x86.avx512.vpdpbusd.512", VI, total, unsigned, signed)
    for shift in (0, 8, 16, 24):
        left = builder.and_(builder.lshr(unsigned, constant(VI, shift)), constant(VI, 255))
        right = builder.ashr(builder.shl(signed, constant(VI, 24 - shift)), constant(VI, 24))
        total = builder.add(total, builder.mul(left, right))
    return total


def dot2_bf16(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """`total[i] + a.lo * b.lo + a.hi * b.hi` of the bf16 pairs in lane i, summed in float32."""
    if HAS_BF16:
        return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", VF, total, a, b)
    for half in (
        lambda v: builder.shl(v, constant(VI, 16)),
        lambda v: builder.and_(v, constant(VI, 0xFFFF0000)),
    ):
        total = multiply_add(
            builder, builder.bitcast(half(a), VF), builder.bitcast(half(b), VF), total
        )
    return total


def fetch(builder: Any, base: Any) -> None:
    """Asks for the cache line at this address, to be read soon; harmless at any address."""
    call(builder, "llvm.prefetch.p0", ir.VoidType(), at(builder, base), I32(0), I32(2), I32(1))


def switch(builder: Any, selector: Any, cases: Mapping[int, Callable[[], None]]) -> None:
    """Emits all of `cases`, of which the one that `selector` names runs; another value runs none."""
    done = builder.append_basic_block("done")
    choice = builder.switch(selector, done)
    for value, emit in cases.items():
        block = builder.append_basic_block(f"case{value}")
        choice.add_case(I64(value), block)
        builder.position_at_end(block)
        emit()
        builder.branch(done)
    builder.position_at_end(done)


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
def loadh(b: Any, base: Any) -> Any:
    """16 float16, widened."""
    return b.fpext(b.load(at(b, base), typ=ir.VectorType(F16, LANES), align=1), VF)


@op(f_type, address)
def loadb(b: Any, base: Any) -> Any:
    """16 signed bytes, as floats."""
    return b.sitofp(b.load(at(b, base), typ=ir.VectorType(I8, LANES), align=1), VF)


@op(f_type, address)
def bcastf(b: Any, base: Any) -> Any:
    """One float32 in every lane."""
    return splat(b, b.load(at(b, base), typ=F32, align=1))


@op(i_type, address)
def bcasti(b: Any, base: Any) -> Any:
    """One int32 in every lane."""
    return splat(b, b.load(at(b, base), typ=I32, align=1))


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


@op(i_type, i_type, i_type)
def ior(b: Any, x: Any, y: Any) -> Any:
    """Bitwise or."""
    return b.or_(x, y)


@op(f_type, i_type, i_type, f_type, f_type)
def where_less(b: Any, x: Any, y: Any, then: Any, otherwise: Any) -> Any:
    """`then` in the lanes where x < y, else `otherwise`."""
    return b.select(b.icmp_signed("<", x, y), then, otherwise)


@op(f_type, i_type)
def to_float(b: Any, x: Any) -> Any:
    """int32 to float32."""
    return b.sitofp(x, VF)


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


@op(int64, address, int64)
def fetch_add(b: Any, base: Any, value: Any) -> Any:
    """Adds to an int64 shared between threads and returns what was there; orders all memory around it."""
    return b.atomic_rmw("add", at(b, base), value, "seq_cst")


@op(int64, address, int64, int64)
def swap_if(b: Any, base: Any, old: Any, new: Any) -> Any:
    """Writes `new` where a shared int64 is `old`; returns what was there."""
    return b.extract_value(b.cmpxchg(at(b, base), old, new, "seq_cst", "seq_cst"), 0)


@op(int64, address)
def load_shared(b: Any, base: Any) -> Any:
    """An int64 that another thread writes; what it wrote before is visible after."""
    return b.load_atomic(at(b, base), "acquire", 8, typ=I64)


@op(void)
def pause(b: Any) -> None:
    """Tells the core that this is a spin loop."""
    if llvm.get_process_triple().startswith("x86_64"):
        call(b, "llvm.x86.sse2.pause", ir.VoidType())


@op(int64, int64, int64, int64, int64, int64)
def syscall(b: Any, number: Any, *values: Any) -> Any:
    """A Linux system call of up to four arguments."""
    signature = ir.FunctionType(I64, [I64], var_arg=True)
    function = b.module.globals.get("syscall") or ir.Function(b.module, signature, "syscall")
    return b.call(function, [number, *values])
