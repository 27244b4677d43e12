"""The number formats a model can run in, and which of them suits this CPU."""

from typing import Literal

import torch

DtypeName = Literal["float32", "bfloat16"]


def onednn_is_there() -> bool:
    """Whether torch was built with oneDNN."""
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def bfloat16_is_fast() -> bool:
    """Whether oneDNN multiplies bfloat16 on this CPU, by instructions of its own or at least by wide vectors."""
    return onednn_is_there() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def default_dtype() -> DtypeName:
    """bfloat16 where this CPU is fast at it, else float32.

    Measured by `benchmarks/cpu_engine.py` with AVX-512 and its bfloat16 dot products: see `docs/measurements.md`.
    """
    return "bfloat16" if bfloat16_is_fast() else "float32"
