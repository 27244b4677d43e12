"""What threads do to memory that they share, and how they wait for each other. Knows addresses; knows no programs."""

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from kernels.cpu.vectors import I64, address, at, call, int64, op, void


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
