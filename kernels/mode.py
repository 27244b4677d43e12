"""Whether Triton interprets kernels on the CPU in this process. Read once: Triton itself decides when a kernel is decorated."""

import triton

INTERPRETED: bool = bool(triton.knobs.runtime.interpret)
"""True under TRITON_INTERPRET=1. The interpreter's products of bf16 are wrong, so operands are widened to fp32 there."""
