"""How many KV blocks fit a device beside the weights. Knows sizes only; reserves nothing itself."""

from typing import Final

from msgspec import Struct

from engine.core.errors import ConfigError
from sim.hardware import DTYPE_BYTES, Hardware
from sim.models import ModelShape

RUNTIME_BYTES: Final = 768 << 20
"""Taken by the driver's context, kernels and captured graphs."""


class PoolBudget(Struct, frozen=True, kw_only=True):
    """Where the memory of a device goes, in bytes; None for what a given pool leaves open."""

    num_blocks: int
    block_bytes: int
    pool_bytes: int
    weight_bytes: int
    activation_bytes: int
    runtime_bytes: int = RUNTIME_BYTES
    given: bool
    """The pool's size was given and not derived."""


def activation_bytes(model: ModelShape, dtype: str, token_budget: int, max_batch: int) -> int:
    """Peak of a step's activations: the widest layer's input, output and residual for every token of the budget, and the
    logits of a full batch in float32, twice (the sampler sorts a copy).
    """
    projections = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    mlp = (2 if model.gated_mlp else 1) * model.intermediate + model.intermediate
    per_token = (2 * model.hidden + max(projections, mlp)) * DTYPE_BYTES[dtype]
    return token_budget * per_token + 2 * max_batch * model.vocab * 4


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
    num_blocks: int | None = None,
    kv_gb: float | None = None,
) -> PoolBudget:
    """The pool: as many blocks as given, or as fit in `kv_gb` (10^9 bytes), or as fit in `utilisation` of the device's memory after
    weights, activations and the runtime.

    Raises:
        ConfigError: not one block fits, or both `num_blocks` and `kv_gb` are given.
    """
    if num_blocks is not None and kv_gb is not None:
        raise ConfigError("give either --num-blocks or --kv-gb, not both")
    block_bytes = block_size * model.kv_bytes_per_token(DTYPE_BYTES[kv_dtype])
    weight_bytes = model.num_params * DTYPE_BYTES[dtype]
    activations = activation_bytes(model, dtype, token_budget, max_batch)
    given = num_blocks is not None or kv_gb is not None
    if num_blocks is None:
        if kv_gb is not None:
            room = int(kv_gb * 1e9)
            origin = f"--kv-gb {kv_gb:g}"
        else:
            room = int(hardware.memory_bytes * utilisation)
            room -= weight_bytes + activations + RUNTIME_BYTES
            origin = (
                f"{hardware.name} with {hardware.memory_bytes / 2**30:.1f} GiB at utilisation "
                f"{utilisation:g}, of which {model.name} in {dtype} takes {weight_bytes / 2**30:.1f} GiB,"
            )
        num_blocks = max(0, room) // block_bytes
        if not num_blocks:
            raise ConfigError(
                f"{origin} leaves no room for a KV block of {block_bytes / 2**20:.2f} MiB; "
                "choose larger hardware, a smaller model or type, or give --num-blocks"
            )
    return PoolBudget(
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        pool_bytes=num_blocks * block_bytes,
        weight_bytes=weight_bytes,
        activation_bytes=activations,
        given=given,
    )
