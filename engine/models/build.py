"""Puts a decoder together from a loaded model. Knows which backend serves which machine; knows no plans."""

import functools
import logging

import torch

from engine.models.attention import AttentionBackend, TorchAttention
from engine.models.decoder import Decoder
from engine.models.dtype import default_dtype
from engine.models.llama import Llama
from engine.models.rotary import Rotary
from engine.weights.load import LoadedModel
from kernels.cpu.host import physical_cores

_LOG = logging.getLogger(__name__)


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
    if model.dtype == default_dtype() and kernels_are_there():
        from engine.models import compiled

        if (why := compiled.refusal(model, block_size)) is None:
            torch.set_num_threads(1)
            return compiled.CompiledLlama(
                model, rotary, num_blocks=num_blocks, block_size=block_size, threads=threads
            )
        _LOG.info("%s runs in torch: %s", model.name, why)
    torch.set_num_threads(physical_cores() if threads is None else threads)
    return Llama(
        model.shape,
        model.tensors,
        _attention(model, rotary, num_blocks, block_size, threads),
    )


def _attention(
    model: LoadedModel, rotary: Rotary, num_blocks: int, block_size: int, threads: int | None
) -> AttentionBackend:
    """The compiled backend, or torch's where the kernels are not there, or a size is not one that they are built for."""
    if kernels_are_there():
        from engine.models.compiled_attention import CompiledAttention, pool_shape

        try:
            pool = pool_shape(model.shape, num_blocks, block_size, model.dtype)
        except ValueError as error:
            _LOG.info("%s attends in torch: %s", model.name, error)
        else:
            return CompiledAttention(pool, rotary, threads)
    dtype = getattr(torch, model.dtype)
    return TorchAttention(model.shape, rotary, num_blocks, block_size, dtype)


@functools.cache
def kernels_are_there() -> bool:
    """Whether the compiled kernels run here; compiles them where that has not been done yet. Says why not, once, in the log.

    Numba may be absent, or not fit this Python or NumPy: everything then runs in torch, more slowly.
    """
    try:
        from kernels.cpu.build import BuildError, entry
    except ImportError as error:
        _LOG.warning("the CPU kernels need Numba; everything runs in torch, more slowly: %s", error)
        return False
    try:
        entry()
    except BuildError as error:
        _LOG.warning("everything runs in torch, more slowly: %s", error)
        return False
    return True
