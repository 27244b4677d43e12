"""Puts a decoder together on an accelerator and finds how large its pool can be. Knows devices and memory; knows no plans."""

from typing import Final

import numpy as np
import torch

from engine.core.errors import ConfigError
from engine.models.device import Accelerator
from engine.models.llama import Llama
from engine.models.rotary import Rotary
from engine.models.step import Step
from engine.models.triton_attention import TritonAttention
from engine.models.triton_llama import TritonLlama
from engine.weights.load import LoadedModel

DEVICE_SHARE: Final = 0.9
"""Share of the free device memory that weights' steps and pool take together; graphs and libraries have the rest."""


@torch.inference_mode()
def build_accelerated(
    model: LoadedModel,
    accelerator: Accelerator,
    *,
    num_blocks: int | None,
    block_size: int,
    max_context: int,
    max_batch: int,
    step_tokens: int,
    pool_bytes: int | None = None,
) -> tuple[TritonLlama, int]:
    """(the decoder, its number of blocks), weights copied to the device.

    Where neither `num_blocks` nor `pool_bytes` is given, the largest step (`step_tokens` positions, `max_batch` rows) runs once,
    and the pool takes what that leaves of the device's free memory.

    Raises:
        ConfigError: the kernels cannot serve this model, or no block fits.
    """
    shape = model.shape
    rotary = Rotary(shape, max_context, model.tensors.get("rope_factors"))
    dtype = getattr(torch, model.dtype)
    attention = TritonAttention(shape, rotary, num_blocks or 1, block_size, dtype, accelerator)
    tensors = {name: x.to(accelerator.device) for name, x in model.tensors.items()}
    llama = Llama(shape, tensors, attention)
    if num_blocks is None:
        if pool_bytes is None:
            pool_bytes = _room(
                llama, accelerator, largest_step(step_tokens, max_batch, max_context, block_size)
            )
        block_bytes = block_size * shape.kv_bytes_per_token(dtype.itemsize)
        most = -(-max_batch * max_context // block_size)
        num_blocks = min(pool_bytes // block_bytes, most)
        if num_blocks < 1:
            raise ConfigError(
                f"the KV pool has room for {pool_bytes} bytes on the device, but one block of "
                f"{block_size} tokens takes {block_bytes}"
            )
        attention.resize(num_blocks)
    return TritonLlama(llama, attention), num_blocks


def largest_step(step_tokens: int, max_batch: int, max_context: int, block_size: int) -> Step:
    """A step of `step_tokens` positions in as many rows as may sample, all in block 0: made to be measured, not to be right."""
    rows = min(max_batch, step_tokens)
    counts = np.full(rows, step_tokens // rows, np.int32)
    counts[: step_tokens % rows] += 1
    counts = np.minimum(counts, max_context).astype(np.int32)
    ends = np.cumsum(counts, dtype=np.int64)
    positions = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    columns = int(positions.max()) // block_size
    corner = (np.array([x], np.int32) for x in (rows - 1, columns, 0))
    return Step(
        ids=torch.zeros(len(positions), dtype=torch.int64),
        positions=positions,
        slots=positions % block_size,
        rows=np.arange(rows, dtype=np.int32),
        starts=np.zeros(rows, np.int32),
        counts=counts,
        offsets=ends - counts.astype(np.int64),
        num_decodes=0,
        tables=np.zeros((rows, columns + 1), np.int32),
        sampled=torch.from_numpy(ends - 1),
        changes=(next(corner), next(corner), next(corner)),
    )


def _room(llama: Llama, accelerator: Accelerator, step: Step) -> int:
    """Bytes that the pool may take: a share of what is free, less what the largest step takes at its peak."""
    if not accelerator.is_cuda:
        raise ConfigError(
            "without a CUDA device the pool's size must be given: --num-blocks or --kv-gb"
        )
    device = accelerator.device
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    llama.forward(step)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return int(free * DEVICE_SHARE) - peak
