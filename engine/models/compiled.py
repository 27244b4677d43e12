"""The Llama decoder on this CPU's vector unit: a step is one call into `kernels/cpu`, in the file's own 4-bit and 8-bit weights.

Serves models whose layers are Q4_1 and whose embedding is Q8_0, on hosts with 8-bit dot products (AVX-512 VNNI); `refusal` says why
it cannot serve another, and then the torch decoder does. Knows weights by name; knows no plans.

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
from kernels.cpu.simd import HAS_VNNI
from kernels.cpu.team import Team, physical_cores

_Q4_1_BYTES: Final = 20
_Q8_0_BYTES: Final = 34


def refusal(model: LoadedModel, block_size: int) -> str | None:
    """Why `CompiledLlama` cannot run `model` in frames of `block_size` here, or None where it can."""
    shape = model.shape
    if not HAS_VNNI:
        return "this CPU has no 8-bit dot products (AVX-512 VNNI)"
    head = "embed" if shape.tied else "head"
    wanted = {f"{name}:Q8_0" for name in ("embed", head)}
    for i in range(shape.num_layers):
        wanted |= {f"layers.{i}.{name}:Q4_1" for name in ("qkv", "o", "gate_up", "down")}
    if missing := sorted(wanted - model.blocks.keys()):
        return f"{missing[0].split(':')[0]} is not in {missing[0].split(':')[1]}"
    if biases := sorted(name for name in model.tensors if name.endswith("_bias")):
        return f"{biases[0]} is a bias"
    if shape.hidden_size % 32 or shape.ffn_size % 32 or shape.vocab_size % 16:
        return "its sizes are not multiples of a vector"
    try:
        pool_shape(shape, 1, block_size)
    except ValueError as error:
        return str(error)
    return None


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

        def blocks(name: str, size: int) -> NDArray[np.uint8]:
            raw: NDArray[np.uint8] = model.blocks[name].numpy()
            return raw.reshape(len(raw), -1, size)

        def q4(name: str) -> NDArray[np.uint8]:
            return blocks(f"{name}:Q4_1", _Q4_1_BYTES)

        layers = [
            Layer(
                attn_norm=model.tensors[f"layers.{i}.attn_norm"].numpy(),
                qkv=q4(f"layers.{i}.qkv"),
                o=q4(f"layers.{i}.o"),
                ffn_norm=model.tensors[f"layers.{i}.ffn_norm"].numpy(),
                gate_up=q4(f"layers.{i}.gate_up"),
                down=q4(f"layers.{i}.down"),
            )
            for i in range(s.num_layers)
        ]
        self._team = Team(physical_cores() if threads is None else threads, scratch_bytes(shape))
        self._decoder = Decoder(
            shape,
            layers,
            model.tensors["norm"].numpy(),
            blocks("embed:Q8_0", _Q8_0_BYTES),
            None if s.tied else blocks("head:Q8_0", _Q8_0_BYTES),
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
