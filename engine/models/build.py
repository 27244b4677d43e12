"""Puts a decoder together from a loaded model. Knows which backend serves which machine; knows no plans."""

import torch

from engine.models.attention import TorchAttention
from engine.models.decoder import Decoder
from engine.models.linear import bfloat16_is_fast
from engine.models.llama import Llama
from engine.models.rotary import Rotary
from engine.weights.convert import DtypeName
from engine.weights.load import LoadedModel


def default_dtype() -> DtypeName:
    """bfloat16 where the CPU has instructions for it, else float32."""
    return "bfloat16" if bfloat16_is_fast() else "float32"


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

    `threads`: None is one for each physical core.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    rotary = Rotary(model.shape, max_context, model.tensors.get("rope_factors"))
    dtype = getattr(torch, model.dtype)
    attention = TorchAttention(model.shape, rotary, num_blocks, block_size, dtype)
    return Llama(model.shape, model.tensors, attention)
