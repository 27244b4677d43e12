"""The roofline: what a step must compute and move, divided by what the device can, piece by piece. No fit.

    linear layers   2 · weights · (tokens + ramp) / peak and weight bytes / bandwidth: the longer, and what it does not hide of the shorter;
                    of experts, those that are touched
    elementwise     norms, rotary, activation: bytes / bandwidth, in proportion to tokens
    output head     2 · vocabulary · hidden / peak, and the logits' bytes, for the positions that sample
    decode          KV bytes / bandwidth (or its arithmetic, where that is more)
    chunks          max(4 · heads · head size · layers · pairs / peak,  KV bytes / bandwidth), pairs rounded up to tiles
    collectives     two all-reduces a layer between the devices of tensor parallelism
    launches        kernels a layer · layers · time a launch; a step with chunks is launched kernel by kernel
    host            a part for each step, sequence and new block, hidden behind the device where steps are planned ahead

Peak and bandwidth are the datasheet's, each times one factor, the same for every device of the table; a device measured by programs has
reached its figures already and takes no factor. What a device reaches of its peak also depends on the watts that it has for it: one exponent
for all, and the datasheet's power. Each kernel costs so many cycles beside its bytes, for filling and draining the pipe of memory and the gap
between kernels: the faster the memory and the slower the clock, the smaller the share of the bandwidth that is reached.

Where each constant comes from is in docs/twin.md: this is version 2, fitted to published measurements by `benchmarks/calibrate.py`. What the
model leaves out: quantisation of waves, L2 hits, experts that are chosen unevenly, sliding windows.
"""

from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from engine.core.errors import ConfigError
from sim.cost import StepWork, decode_work, growing_context
from sim.hardware import DTYPE_BYTES, Hardware, stored_bytes
from sim.models import ModelShape

Share = Annotated[float, Meta(gt=0, le=1)]
NotNegative = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]

ACTIVATION_BYTES = 2
"""Activations travel in 16 bits, whatever the weights' type."""
USUAL_MHZ = 2000
"""Of a device whose clock is not told."""


class Efficiency(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What share of a datasheet figure serving engines reach, and what launches and the host cost."""

    linear_compute: Share = 0.66
    """Large dense products against tensor-core peak."""
    ramp_tokens: NotNegative = 60
    """Tokens at which linear layers reach half of that: half a tile of 128 rows is empty on average."""
    attention_compute: Share = 0.47
    """Fused attention over prompts against the same peak."""
    power_exponent: Annotated[float, Meta(ge=0, le=1)] = 0.22
    """Those shares are of a card whose peak is 1 TFLOP/s a watt; they fall with that density to this power. A third: power always limits, and
    goes as the clock cubed; 0: it never does."""
    unhidden: Annotated[float, Meta(ge=0, le=1)] = 0.18
    """Of a product's arithmetic and its reads the longer does not hide this share of the shorter: tiles start and end, waves are not full."""
    attention_tile: NotNegative = 64
    """Keys that a query's last tile computes in vain, on average."""
    memory: Share = 0.94
    """Streaming reads of weights and activations against peak bandwidth."""
    kv_memory: Share = 0.88
    """Reads of KV blocks against the same bandwidth; beside it stands the block size's own efficiency."""
    logit_bytes: NotNegative = 16
    """Moved for each logit: 16 bits written, read, copied to 32, read by the sampler twice."""
    link: Share = 0.75
    """Collectives against the link's bandwidth, between switches of the NVLink kind."""
    pcie_link: Share = 0.55
    """The same over PCIe; hosts differ by a factor of three."""
    collective_us: NotNegative = 10.0
    """Latency of an all-reduce over a switched link."""
    pcie_collective_us: NotNegative = 28.0
    """The same over PCIe, through the host."""
    kernel_cycles: NotNegative = 12_000
    """Of the processors' clock, from a kernel's full rate to the next one's in a captured graph: the pipe of memory drains, a gap, it fills."""
    eager_launch_us: NotNegative = 5.0
    """What the host needs to launch a kernel without a graph; a step with chunks takes no less than its launches."""
    launches_per_layer: Annotated[int, Meta(ge=0)] = 8
    """Two norms, QKV, rotary and cache write, attention, output, gate-up, down."""
    quantise_launches: Annotated[int, Meta(ge=0)] = 1
    """More of them where products quantise their inputs too (fp8, int8): before the output projection; norms and activation do it for the others."""
    expert_launches: Annotated[int, Meta(ge=0)] = 5
    """More of them where a layer has experts: router, choice, sorting, its second kernel, sum."""
    step_us: NotNegative = 190.0
    """Between two steps, whatever is planned ahead: sampled tokens to inputs, the launch of the graph."""
    host_step_us: NotNegative = 640.0
    """Planning, building inputs and taking in results: a step's share."""
    host_sequence_us: NotNegative = 10.0
    """A sequence's share."""
    host_block_us: NotNegative = 3.0
    """A new block's share: frame, table entry, its way to the device."""


class Parts(NamedTuple):
    """What the roofline adds up, in nanoseconds a unit: the larger of `compute` and `memory`, and the rest."""

    compute: tuple[float, float]
    """Of linear layers: (a step, a token), with what arithmetic does not hide of the reads."""
    memory: tuple[float, float]
    """The same of the reads, with what they do not hide of arithmetic."""
    fixed_ns: float
    token_ns: float
    """Moved, whatever is computed."""
    sample_ns: float
    kv_ns: float
    pair_ns: float
    tile: float
    host_ns: float
    host_sequence_ns: float
    host_token_ns: float
    step_ns: float
    overlap: bool


class Roofline:
    """Prices steps of one model on one device, or on several by tensor parallelism. Attention computes in `kv_dtype`."""

    name = "roofline"

    def __init__(
        self,
        hardware: Hardware,
        model: ModelShape,
        dtype: str,
        kv_dtype: str,
        efficiency: Efficiency | None = None,
        *,
        block_size: int = 16,
        block_efficiency: float = 1.0,
        tensor_parallel: int = 1,
        overlap: bool = True,
    ) -> None:
        """Reduces the shapes to nanoseconds a unit.

        Args:
            hardware: One device.
            model: What it computes.
            dtype: Of the weights.
            kv_dtype: Of the KV cache.
            efficiency: What is reached of the hardware's figures.
            block_size: Of the KV pool.
            block_efficiency: What reading blocks of this size reaches, of the best size.
            tensor_parallel: Devices that share each layer.
            overlap: A step is planned while the one before runs.

        Raises:
            ConfigError: the hardware has no arithmetic for `dtype` or `kv_dtype`, or no link for tensor parallelism.
        """
        rates = efficiency or Efficiency()
        reached = 1.0 if hardware.measured else None
        devices = tensor_parallel
        head_dtype = "bf16" if stored_bytes(dtype)[0] < stored_bytes(dtype)[1] else dtype
        linear = devices * flops_per_ns(hardware, dtype, rates.linear_compute, rates)
        head = devices * flops_per_ns(hardware, head_dtype, rates.linear_compute, rates)
        attention = devices * flops_per_ns(hardware, kv_dtype, rates.attention_compute, rates)
        device_bandwidth = hardware.memory_gb_per_s
        bandwidth = devices * (reached or rates.memory) * device_bandwidth
        kv_bandwidth = devices * (reached or rates.kv_memory) * device_bandwidth * block_efficiency

        layers = model.num_layers
        matrix_bytes, other_bytes = stored_bytes(dtype)
        others = model.read_params - layers * model.layer_matmul_params
        shared = layers * model.shared_matmul_params
        expert = layers * model.mlp_params if model.num_experts else 0
        self._model = model
        self._ramp = rates.ramp_tokens
        self._unhidden = rates.unhidden
        self._token_ns = 2 * shared / linear
        self._expert_token_ns = 2 * expert / linear
        self._weights_ns = (shared * matrix_bytes + others * other_bytes) / bandwidth
        self._expert_ns = expert * matrix_bytes / bandwidth
        self._sample_ns = 2 * model.head_params / head
        self._sample_ns += model.vocab * rates.logit_bytes / bandwidth
        kv_bytes = model.kv_bytes_per_token(DTYPE_BYTES[kv_dtype], devices)
        self._kv_ns = kv_bytes / kv_bandwidth
        self._pair_ns = 4 * layers * model.num_heads * model.head_dim / attention
        self._context_ns = max(self._pair_ns, self._kv_ns)
        self._tile = rates.attention_tile
        launches = layers * _launches(model, dtype, rates)
        self._fixed_ns = 1e3 * launches * rates.kernel_cycles / (hardware.clock_mhz or USUAL_MHZ)
        self._eager_ns = 1e3 * launches * rates.eager_launch_us
        # Each device keeps all of the residual stream; the rest of the activations is shared out.
        whole, split = _elementwise(model)
        self._moved_ns = layers * ACTIVATION_BYTES * (devices * whole + split) / bandwidth
        self._moved_ns += self._kv_ns
        if devices > 1:
            link_ns, latency_ns = _collectives(hardware, model, devices, rates)
            self._moved_ns += link_ns
            self._fixed_ns += latency_ns
        self._overlap = overlap
        self._step_ns = 1e3 * rates.step_us
        self._host_ns = 1e3 * rates.host_step_us
        self._host_sequence_ns = 1e3 * rates.host_sequence_us
        self._host_token_ns = 1e3 * rates.host_block_us / block_size
        self._device_of: NDArray[np.float64] = np.zeros(0)
        """What a step of so many decodes costs beside their contexts; filled as sizes come."""
        self._host_of: NDArray[np.float64] = np.zeros(0)

    def step_ns(self, work: StepWork) -> int:
        """Nanoseconds of one step; the sum of the parts above."""
        context = work.context_tokens - work.chunk_context
        device = context * self._context_ns + self._without_context_ns(work)
        if work.num_chunks:
            device = max(device, self._eager_ns)
        host = self._host_of_ns(work)
        step = max(device, host) if self._overlap else device + host
        return max(1, round(step + self._step_ns))

    def leap_ns(self, work: StepWork, steps: int) -> NDArray[np.int64]:
        """`step_ns` of each of `steps` steps, in a few array operations of the same arithmetic."""
        times: NDArray[np.float64] = np.multiply(
            growing_context(work, steps), self._context_ns, dtype=np.float64
        )
        times += self._without_context_ns(work)
        return self._with_host(times, self._host_of_ns(work))

    def run_ns(self, sizes: NDArray[np.int64], contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """`step_ns` of steps of decodes, by the same arithmetic: what does not depend on contexts is kept for each size."""
        most = int(sizes.max())
        if most >= len(self._device_of):
            works = [decode_work(size, 0) for size in range(2 * most + 1)]
            self._device_of = np.array([self._without_context_ns(work) for work in works])
            self._host_of = np.array([self._host_of_ns(work) for work in works])
        times: NDArray[np.float64] = np.multiply(contexts, self._context_ns, dtype=np.float64)
        times += self._device_of[sizes]
        return self._with_host(times, self._host_of[sizes])

    def chunks_ns(self, work: StepWork, steps: int) -> NDArray[np.int64]:
        """`step_ns` of steps with a chunk each, by the same arithmetic."""
        ahead = np.arange(steps)
        chunk, decodes = work.chunk_tokens, work.num_sequences - 1
        context = work.context_tokens - work.chunk_context + ahead * decodes
        pairs = work.chunk_attended + ahead * (chunk * chunk) + self._tile * chunk
        read = (work.chunk_context + ahead * chunk) * self._kv_ns
        attention = np.maximum(pairs * self._pair_ns, read)
        times: NDArray[np.float64] = np.multiply(context, self._context_ns, dtype=np.float64)
        times += self._products_ns(work.num_tokens) + (self._rest_ns(work) + attention)
        np.maximum(times, self._eager_ns, out=times)
        return self._with_host(times, self._host_of_ns(work))

    def parts(self, most_tokens: int) -> Parts:
        """What the sum is made of; of a mixture of experts the straight line below what up to `most_tokens` tokens touch."""
        compute, memory = self._ramp * self._token_ns, self._weights_ns
        compute_token, memory_token = self._token_ns, 0.0
        if self._expert_ns:
            touched = self._model.experts_touched
            slope = (touched(most_tokens) - touched(1)) / max(1, most_tokens - 1)
            base = touched(1) - slope
            compute += self._ramp * base * self._expert_token_ns
            compute_token += self._model.experts_per_token * self._expert_token_ns
            compute_token += self._ramp * slope * self._expert_token_ns
            memory += base * self._expert_ns
            memory_token += slope * self._expert_ns
        left = self._unhidden
        return Parts(
            compute=(compute + left * memory, compute_token + left * memory_token),
            memory=(memory + left * compute, memory_token + left * compute_token),
            fixed_ns=self._fixed_ns,
            token_ns=self._moved_ns,
            sample_ns=self._sample_ns,
            kv_ns=self._kv_ns,
            pair_ns=self._pair_ns,
            tile=self._tile,
            host_ns=self._host_ns,
            host_sequence_ns=self._host_sequence_ns,
            host_token_ns=self._host_token_ns,
            step_ns=self._step_ns,
            overlap=self._overlap,
        )

    def _with_host(
        self, times: NDArray[np.float64], host: NDArray[np.float64] | float
    ) -> NDArray[np.int64]:
        """Whole steps from what the device takes, which is overwritten, and the host."""
        if self._overlap:
            np.maximum(times, host, out=times)
        else:
            times += host
        times += self._step_ns
        np.rint(times, out=times)
        np.maximum(times, 1.0, out=times)
        return times.astype(np.int64)

    def _without_context_ns(self, work: StepWork) -> float:
        """The device's work, but for what decoding sequences read of their contexts."""
        rest = self._rest_ns(work)
        if work.num_chunks:
            pairs = work.chunk_attended + self._tile * work.chunk_tokens
            rest += max(pairs * self._pair_ns, work.chunk_context * self._kv_ns)
        return self._products_ns(work.num_tokens) + rest

    def _products_ns(self, tokens: int) -> float:
        """Of linear layers."""
        compute = (tokens + self._ramp) * self._token_ns
        memory = self._weights_ns
        if self._expert_ns:
            touched = self._model.experts_touched(tokens)
            rows = tokens * self._model.experts_per_token + self._ramp * touched
            compute += rows * self._expert_token_ns
            memory += touched * self._expert_ns
        return max(compute, memory) + self._unhidden * min(compute, memory)

    def _rest_ns(self, work: StepWork) -> float:
        """Of everything but linear layers and attention."""
        return (
            work.num_samples * self._sample_ns + work.num_tokens * self._moved_ns + self._fixed_ns
        )

    def _host_of_ns(self, work: StepWork) -> float:
        sequences = work.num_sequences * self._host_sequence_ns
        return self._host_ns + sequences + work.num_tokens * self._host_token_ns


def flops_per_ns(hardware: Hardware, dtype: str, share: float, rates: Efficiency) -> float:
    """Operations in `dtype` that one device does in a nanosecond, of products that reach `share` of the peak at 1 TFLOP/s a watt."""
    peak = hardware.peak_flops(dtype)
    if hardware.measured:
        return 1e-9 * peak
    density = 1e-12 * peak / hardware.watts if hardware.watts else 1.0
    limited: float = density**-rates.power_exponent
    return 1e-9 * peak * share * limited


def _launches(model: ModelShape, dtype: str, rates: Efficiency) -> int:
    """Kernels of one layer."""
    quantise = rates.quantise_launches if dtype in ("fp8", "int8") else 0
    experts = rates.expert_launches if model.num_experts else 0
    return rates.launches_per_layer + quantise + experts


def _elementwise(model: ModelShape) -> tuple[int, int]:
    """Numbers read and written outside of products, a token and layer: (by every device whole, shared out between devices)."""
    projections = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    copies = model.experts_per_token or 1
    mlp = copies * (3 if model.gated_mlp else 2) * model.intermediate
    residual = 8 * model.hidden
    if model.num_experts:
        residual += 2 * copies * model.hidden
    return residual, 2 * projections + mlp


def _collectives(
    hardware: Hardware, model: ModelShape, devices: int, rates: Efficiency
) -> tuple[float, float]:
    """Nanoseconds of two all-reduces a layer: (for each token, whatever the tokens)."""
    if hardware.link_gb_per_s is None:
        raise ConfigError(
            f"hardware {hardware.name!r} has no link_gb_per_s, which tensor parallelism needs; "
            "give it one in a --hardware-file"
        )
    count = 2 * model.num_layers
    sent = 2 * (devices - 1) / devices * model.hidden * ACTIVATION_BYTES
    pcie = hardware.link == "pcie"
    latency = rates.pcie_collective_us if pcie else rates.collective_us
    share = rates.pcie_link if pcie else rates.link
    return count * sent / (share * hardware.link_gb_per_s), 1e3 * count * latency
