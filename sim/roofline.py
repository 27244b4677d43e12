"""The roofline: a step takes as long as its arithmetic or its memory traffic, whichever is slower, plus launches. No fit.

    linear layers   max(2 · weights · tokens / peak,  weight bytes / bandwidth)
    output head     within the linear layers, for the positions that sample
    attention       max(4 · heads · head size · layers · pairs / peak,  KV bytes read and written / bandwidth)
    launches        kernels a layer · layers · time a launch, and the host's share of a step

Peak and bandwidth are the datasheet's, each times one efficiency factor, the same for every device of the table; a device measured by programs
has reached its figures already and takes no factor. The constants were set from general experience before any comparison with a
measured run, and are not tuned to one. What the model leaves out: activations' traffic (small beside weights and KV), tile
and wave quantisation, clocks that fall under load.
"""

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from sim.cost import StepWork, growing_context
from sim.hardware import DTYPE_BYTES, Hardware
from sim.models import ModelShape

Share = Annotated[float, Meta(gt=0, le=1)]
Microseconds = Annotated[float, Meta(ge=0)]


class Efficiency(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What share of a datasheet figure kernels reach, and what a launch costs."""

    linear_compute: Share = 0.70
    """Large dense products against tensor-core peak."""
    attention_compute: Share = 0.50
    """Fused attention over long prompts against the same peak."""
    memory: Share = 0.80
    """Streaming reads of weights and KV blocks against peak bandwidth."""
    launch_us: Microseconds = 2.0
    """From the end of a kernel to the start of the next, in a captured graph."""
    launches_per_layer: Annotated[int, Meta(ge=0)] = 8
    """Two norms, QKV, rotary and cache write, attention, output, gate-up, down."""
    step_us: Microseconds = 500.0
    """Host work that no kernel hides: sampling, the hand-over of results, the launch of the graph."""


class Roofline:
    """Prices steps of one model on one device. Weights and KV of `dtype` and `kv_dtype`; attention computes in `kv_dtype`."""

    name = "roofline"

    def __init__(
        self,
        hardware: Hardware,
        model: ModelShape,
        dtype: str,
        kv_dtype: str,
        efficiency: Efficiency | None = None,
    ) -> None:
        """Reduces the shapes to nanoseconds a unit.

        Raises:
            ConfigError: the hardware has no arithmetic for `dtype` or `kv_dtype`.
        """
        rates = efficiency or Efficiency()
        reached = 1.0 if hardware.measured else None
        linear = (reached or rates.linear_compute) * hardware.peak_flops(dtype)
        attention = (reached or rates.attention_compute) * hardware.peak_flops(kv_dtype)
        bandwidth = (reached or rates.memory) * hardware.memory_gb_per_s * 1e9
        kv_bytes = model.kv_bytes_per_token(DTYPE_BYTES[kv_dtype])
        pair_flops = 4 * model.num_layers * model.num_heads * model.head_dim
        launches = rates.launches_per_layer * model.num_layers
        self._token_ns = 2e9 * model.num_layers * model.layer_matmul_params / linear
        self._sample_ns = 2e9 * model.head_params / linear
        self._weights_ns = 1e9 * model.read_params * DTYPE_BYTES[dtype] / bandwidth
        self._pair_ns = 1e9 * pair_flops / attention
        self._kv_ns = 1e9 * kv_bytes / bandwidth
        self._fixed_ns = 1e3 * (launches * rates.launch_us + rates.step_us)

    def step_ns(self, work: StepWork) -> int:
        """Nanoseconds of one step; the sum of the parts above."""
        attention = max(
            work.attended * self._pair_ns, (work.context_tokens + work.num_tokens) * self._kv_ns
        )
        return max(1, round(self._linear_ns(work) + attention))

    def leap_ns(self, work: StepWork, steps: int) -> NDArray[np.int64]:
        """`step_ns` of each of `steps` steps, in a few array operations of the same arithmetic."""
        context = growing_context(work, steps)
        attention: NDArray[np.float64] = np.maximum(
            context * self._pair_ns, (context + work.num_tokens) * self._kv_ns
        )
        attention += self._linear_ns(work)
        np.rint(attention, out=attention)
        np.maximum(attention, 1.0, out=attention)
        return attention.astype(np.int64)

    def _linear_ns(self, work: StepWork) -> float:
        """What does not depend on the context."""
        compute = work.num_tokens * self._token_ns + work.num_samples * self._sample_ns
        return max(compute, self._weights_ns) + self._fixed_ns
