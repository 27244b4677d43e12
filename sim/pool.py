"""How many KV blocks fit a device, or several that share a model, beside the weights. Knows sizes only; reserves nothing itself."""

from typing import Final

from msgspec import Struct

from engine.core.errors import ConfigError
from sim.hardware import DTYPE_BYTES, Hardware, stored_bytes
from sim.models import ModelShape

RUNTIME_BYTES: Final = 768 << 20
"""Taken by the driver's context, kernels and captured graphs."""

MAX_BLOCKS: Final = 1 << 26
"""A thousand million tokens in blocks of 16. Each block takes some bytes of this machine, which runs out of them first."""


class PoolBudget(Struct, frozen=True, kw_only=True):
    """Where the memory of a replica's devices goes, in bytes, all of them together."""

    num_blocks: int
    block_bytes: int
    pool_bytes: int
    weight_bytes: int
    activation_bytes: int
    runtime_bytes: int
    given: bool
    """The pool's size was given and not derived."""


def activation_bytes(model: ModelShape, dtype: str, token_budget: int, max_batch: int) -> int:
    """Peak of a step's activations: the widest layer's input, output and residual for every token of the budget, and the
    logits of a full batch in float32, twice (the sampler sorts a copy). Activations take 16 bits at least.
    """
    projections = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    mlp = (2 if model.gated_mlp else 1) * model.intermediate + model.intermediate
    mlp *= model.experts_per_token or 1
    per_token = (2 * model.hidden + max(projections, mlp)) * int(stored_bytes(dtype)[1])
    return token_budget * per_token + 2 * max_batch * model.vocab * 4


def weight_bytes(model: ModelShape, dtype: str) -> int:
    """Of all parameters; quantised types leave embeddings, output head and norms in 16 bits."""
    matrix_bytes, other_bytes = stored_bytes(dtype)
    matrices = model.num_layers * model.layer_matmul_params
    return int(matrices * matrix_bytes + (model.num_params - matrices) * other_bytes)


def pool_budget(
    hardware: Hardware,
    model: ModelShape,
    *,
    dtype: str,
    kv_dtype: str,
    block_size: int,
    token_budget: int,
    max_batch: int,
    utilisation: float,
    tensor_parallel: int = 1,
    num_blocks: int | None = None,
    kv_gb: float | None = None,
) -> PoolBudget:
    """The pool: as many blocks as given, or as fit in `kv_gb` (10^9 bytes), or as fit in `utilisation` of the device's memory after
    weights, activations and the runtime. Of `tensor_parallel` devices each holds its share of weights and blocks, and activations and
    a runtime of its own.

    Raises:
        ConfigError: not one block fits, both `num_blocks` and `kv_gb` are given, or the heads cannot be shared out.
    """
    if num_blocks is not None and kv_gb is not None:
        raise ConfigError("give either --num-blocks or --kv-gb, not both")
    devices = tensor_parallel
    if model.num_heads % devices or (model.num_kv_heads % devices and devices % model.num_kv_heads):
        raise ConfigError(
            f"--tensor-parallel {devices} does not divide the {model.num_heads} heads and "
            f"{model.num_kv_heads} KV heads of {model.name}"
        )
    block_bytes = block_size * model.kv_bytes_per_token(DTYPE_BYTES[kv_dtype], devices)
    weights = weight_bytes(model, dtype)
    activations = devices * activation_bytes(model, dtype, token_budget, max_batch)
    runtime = devices * RUNTIME_BYTES
    given = num_blocks is not None or kv_gb is not None
    if num_blocks is None:
        if kv_gb is not None:
            room = int(kv_gb * 1e9)
            origin = f"--kv-gb {kv_gb:g}"
        else:
            room = int(devices * hardware.memory_bytes * utilisation)
            room -= weights + activations + runtime
            several = f"{devices} of " if devices > 1 else ""
            origin = (
                f"{several}{hardware.name} with {hardware.memory_bytes / 2**30:.1f} GiB at utilisation "
                f"{utilisation:g}, of which {model.name} in {dtype} takes {weights / 2**30:.1f} GiB,"
            )
        num_blocks = max(0, room) // block_bytes
        if not num_blocks:
            raise ConfigError(
                f"{origin} leaves no room for a KV block of {block_bytes / 2**20:.2f} MiB; "
                "choose larger hardware, a smaller model or type, or give --num-blocks"
            )
    if num_blocks > MAX_BLOCKS:
        raise ConfigError(
            f"a pool of {num_blocks:,} blocks is more than the twin keeps, {MAX_BLOCKS:,}; "
            "choose larger blocks or a smaller pool"
        )
    return PoolBudget(
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        pool_bytes=num_blocks * block_bytes,
        weight_bytes=weights,
        activation_bytes=activations,
        runtime_bytes=runtime,
        given=given,
    )
