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

    Measured by `benchmarks/cpu_engine.py` on the torch decoder, one thread of a CPU with bfloat16 dot products, both in one
    run: bfloat16 gave 2.6, 1.3 and 1.9 times the tokens of float32 at 1, 8 and 32 streams, and 1.6 times in prefill.
    """
    return "bfloat16" if bfloat16_is_fast() else "float32"
