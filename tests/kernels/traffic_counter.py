"""Counts the bytes that kernels load and store under Triton's interpreter, and reads the formulas of their docstrings."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from triton.runtime import interpreter


class Traffic:
    """Bytes of global memory that programs touched, masked elements left out."""

    def __init__(self) -> None:
        self.loads = 0
        self.stores = 0
        self.tiles = 0
        """Loads of two-dimensional tiles, wholly masked ones included."""


@contextmanager
def counted(patch: pytest.MonkeyPatch) -> Iterator[Traffic]:
    """Counts what is loaded and stored inside the block."""
    builder, traffic = interpreter.interpreter_builder, Traffic()
    load, store = builder.create_masked_load, builder.create_masked_store

    def counting_load(ptrs: Any, mask: Any, *rest: Any) -> Any:
        traffic.tiles += mask.data.ndim == 2
        traffic.loads += int(mask.data.sum()) * (ptrs.get_element_ty().primitive_bitwidth // 8)
        return load(ptrs, mask, *rest)

    def counting_store(ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        traffic.stores += int(mask.data.sum()) * (ptrs.get_element_ty().primitive_bitwidth // 8)
        return store(ptrs, value, mask, *rest)

    with patch.context() as patched:
        patched.setattr(builder, "create_masked_load", counting_load)
        patched.setattr(builder, "create_masked_store", counting_store)
        yield traffic


def documented(kernel: Any, **names: int) -> tuple[int, int]:
    """(loads, stores) in bytes by the formulas in the kernel's docstring, with `names` for their variables."""
    text = kernel.fn.__doc__
    formulas = (
        re.search(rf"^\s*{kind}: (.+)$", text, re.MULTILINE) for kind in ("loads", "stores")
    )
    loads, stores = (eval(f[1], {"__builtins__": {}}, names) for f in formulas if f)
    return loads, stores
