"""Vectors of 16 lanes as Numba values, and how operations on them are made of LLVM's instructions.

Numba's vectoriser does not find 4-bit dot products, so the kernels of this package are written with explicit vectors: `F` is
16 float32, `I` is 16 int32. Both are LLVM vectors: they live in registers, and where a host lacks the width or an
instruction LLVM splits or expands. Only `dot4` (u8 x s8) and `dot2` (bf16 pairs) name an instruction, where the host has it;
both have a plain expansion. What kernels call is in `simd.py`; what threads share, in `shared.py`. Knows no tensors.
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
