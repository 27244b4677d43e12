"""Puts a decoder together from a loaded model. Knows which backend serves which machine; knows no plans."""

import torch

from engine.models import compiled
from engine.models.attention import AttentionBackend, TorchAttention
from engine.models.compiled import CompiledLlama
from engine.models.compiled_attention import CompiledAttention, pool_shape
from engine.models.decoder import Decoder
from engine.models.dtype import default_dtype
from engine.models.llama import Llama
from engine.models.rotary import Rotary
from engine.weights.load import LoadedModel
from kernels.cpu.team import physical_cores


@torch.inference_mode()
def build_decoder(
    model: LoadedModel,
    *,
    num_blocks: int,
    block_size: int,
    max_context: int,
    threads: int | None = None,
) -> Decoder:
    """A decoder with its own pool of `num_blocks` frames, for positions below `max_context`.

    The compiled decoder where it can serve the model, unless another dtype than this machine's default was asked for; else
    the torch decoder in that dtype. `threads`: None is one for each physical core.
    """
    rotary = Rotary(model.shape, max_context, model.tensors.get("rope_factors"))
    if model.dtype == default_dtype() and compiled.refusal(model, block_size) is None:
        torch.set_num_threads(1)
        return CompiledLlama(
            model, rotary, num_blocks=num_blocks, block_size=block_size, threads=threads
        )
    torch.set_num_threads(physical_cores() if threads is None else threads)
    return Llama(
        model.shape,
        model.tensors,
        _attention(model, rotary, num_blocks, block_size, threads),
    )


def _attention(
    model: LoadedModel, rotary: Rotary, num_blocks: int, block_size: int, threads: int | None
) -> AttentionBackend:
    """The compiled backend, or torch's where a size is not one that it is built for."""
    try:
        pool = pool_shape(model.shape, num_blocks, block_size, model.dtype)
    except ValueError:
        dtype = getattr(torch, model.dtype)
        return TorchAttention(model.shape, rotary, num_blocks, block_size, dtype)
    return CompiledAttention(pool, rotary, threads)
