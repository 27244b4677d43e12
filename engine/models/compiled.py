"""The Llama decoder on this CPU's vector unit: a step is one call into `kernels/cpu`, in the file's own 4-bit and 8-bit weights.

Serves quantised files (Q4_1 and Q8_0 as they are, what else they hold rounded to Q8_0) on hosts with 8-bit dot products (AVX-512
VNNI); `refusal` says why it cannot serve a model, and then the torch decoder does. Knows weights by name; knows no plans.

Sequences' logits do not depend on what shares their steps: see `kernels/cpu/decoder.py`.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from engine.models.compiled_attention import pool_shape
from engine.models.rotary import Rotary
from engine.models.step import Step
from engine.weights.load import LoadedModel
from kernels.cpu.decoder import Decoder, DecoderShape, Layer, scratch_bytes
from kernels.cpu.host import physical_cores
from kernels.cpu.linear import Q4_1_BYTES, Q8_0_BYTES, quantise_q8_0
from kernels.cpu.team import Team
from kernels.cpu.vectors import HAS_VNNI

F32 = NDArray[np.float32]

_BLOCK_BYTES: Final = {"Q4_1": Q4_1_BYTES, "Q8_0": Q8_0_BYTES}


def refusal(model: LoadedModel, block_size: int) -> str | None:
    """Why `CompiledLlama` cannot run `model` in frames of `block_size` here, or None where it can."""
    shape = model.shape
    if not HAS_VNNI:
        return "this CPU has no 8-bit dot products (AVX-512 VNNI)"
    if not model.blocks:
        return "its weights are not quantised, and would lose by it"
    width = shape.num_heads * shape.head_size
    if (
        any(size % 32 for size in (shape.hidden_size, shape.ffn_size, width))
        or shape.vocab_size % 16
    ):
        return "its sizes are not multiples of a vector"
    try:
        pool_shape(shape, 1, block_size)
    except ValueError as error:
        return str(error)
    return None


def _blocks(
    model: LoadedModel, name: str, kinds: tuple[str, ...] = ("Q4_1", "Q8_0")
) -> NDArray[np.uint8]:
    """A matrix as raw blocks uint8 [outputs, groups, bytes]: the file's own where they are of `kinds`, else rounded to Q8_0."""
    for kind in kinds:
        if (raw := model.blocks.get(f"{name}:{kind}")) is not None:
            return raw.numpy().reshape(len(raw), -1, _BLOCK_BYTES[kind])
    return quantise_q8_0(model.tensors[name].float().numpy())


class CompiledLlama:
    """A decoder, its pool and its threads."""

    def __init__(
        self,
        model: LoadedModel,
        rotary: Rotary,
        *,
        num_blocks: int,
        block_size: int,
        threads: int | None = None,
    ) -> None:
        """Packs the weights; `refusal(model)` must be None. `threads`: None is one for each physical core."""
        s = model.shape
        shape = DecoderShape(
            vocab_size=s.vocab_size,
            hidden_size=s.hidden_size,
            ffn_size=s.ffn_size,
            norm_eps=s.norm_eps,
            pool=pool_shape(s, num_blocks, block_size),
        )

        def vector(name: str) -> F32 | None:
            return model.tensors[name].float().numpy() if name in model.tensors else None

        def norm(name: str) -> F32:
            return model.tensors[name].float().numpy()

        layers = [
            Layer(
                attn_norm=norm(f"layers.{i}.attn_norm"),
                qkv=_blocks(model, f"layers.{i}.qkv"),
                o=_blocks(model, f"layers.{i}.o"),
                ffn_norm=norm(f"layers.{i}.ffn_norm"),
                gate_up=_blocks(model, f"layers.{i}.gate_up"),
                down=_blocks(model, f"layers.{i}.down"),
                qkv_bias=vector(f"layers.{i}.qkv_bias"),
                o_bias=vector(f"layers.{i}.o_bias"),
            )
            for i in range(s.num_layers)
        ]
        self._team = Team(physical_cores() if threads is None else threads, scratch_bytes(shape))
        self._decoder = Decoder(
            shape,
            layers,
            norm("norm"),
            _blocks(model, "embed", ("Q8_0",)),
            None if s.tied else _blocks(model, "head"),
            torch.cat((rotary.cos, rotary.sin), dim=1).numpy(),
            self._team,
        )
        self.frames: NDArray[np.uint8] = self._decoder.frames

    def forward(self, step: Step) -> torch.Tensor:
        """Logits [S, vocabulary] float32 of the step's sampled places, valid until the next call."""
        logits = self._decoder.forward(
            step.ids.numpy(), step.rows, step.starts, step.counts, step.tables, step.sampled.numpy()
        )
        return torch.from_numpy(logits)

    def close(self) -> None:
        """Ends the threads; idempotent."""
        self._team.close()
