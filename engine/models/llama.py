"""The Llama family's decoder in torch: embedding, layers, head. Knows weights by name and a step by its arrays; knows no
requests, and of the cache only that an attention backend has one.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from engine.models.attention import AttentionBackend
from engine.models.linear import Head, Linear
from engine.models.shape import ModelShape
from engine.models.step import Step


class Llama:
    """A decoder in float32 or bfloat16; norms are computed in float32.

    Source: Touvron et al., LLaMA, section 2.2 (RMSNorm before each part, SwiGLU, rotary positions); grouped queries from
    Llama 2, section 2.2.
    """

    def __init__(
        self, shape: ModelShape, tensors: dict[str, torch.Tensor], attention: AttentionBackend
    ) -> None:
        """`tensors`: the layout of `engine/weights/convert.py`; packed copies are made of the matrices."""
        self._attention = attention
        self._eps = shape.norm_eps
        self._embed = tensors["embed"]
        self._norm = tensors["norm"]
        self._head = Head(tensors["embed" if shape.tied else "head"])
        self._layers = [
            _Layer(i, shape, tensors, attention, self._eps) for i in range(shape.num_layers)
        ]

    @property
    def frames(self) -> NDArray[np.uint8]:
        """The pool of its attention backend, see `Decoder`."""
        return self._attention.frames

    def forward(self, step: Step) -> torch.Tensor:
        """Logits [S, vocabulary] float32 of the step's sampled places; keys and values of all T positions are cached."""
        self._attention.begin(step)
        return self.compute(step.ids, step.sampled)

    def compute(self, ids: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
        """As `forward`, for the step that the attention backend has been given already. ids: [T]; sampled: [S]; integers."""
        hidden = self._embed[ids]
        for layer in self._layers:
            hidden = layer.forward(hidden)
        wanted = rms_norm(hidden[sampled], self._norm, self._eps)
        return self._head(wanted)

    def close(self) -> None:
        """Closes the attention backend."""
        self._attention.close()


class _Layer:
    """Attention, then feed-forward, each added to what came in."""

    def __init__(
        self,
        index: int,
        shape: ModelShape,
        tensors: dict[str, torch.Tensor],
        attention: AttentionBackend,
        eps: float,
    ) -> None:
        own = f"layers.{index}."
        self._index = index
        self._attention = attention
        self._eps = eps
        self._attn_norm = tensors[own + "attn_norm"]
        self._ffn_norm = tensors[own + "ffn_norm"]
        self._qkv = Linear(tensors[own + "qkv"], tensors.get(own + "qkv_bias"))
        self._o = Linear(tensors[own + "o"], tensors.get(own + "o_bias"))
        gate, up = torch.split(tensors[own + "gate_up"], shape.ffn_size)
        self._gate, self._up = Linear(gate), Linear(up)
        self._down = Linear(tensors[own + "down"])

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, hidden] to [T, hidden]."""
        qkv = self._qkv(rms_norm(hidden, self._attn_norm, self._eps))
        hidden = self._o.plus(self._attention.attend(self._index, qkv), hidden)
        x = rms_norm(hidden, self._ffn_norm, self._eps)
        return self._down.plus(self._up.times(x, self._gate.silu(x)), hidden)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """[n, size] scaled to unit mean square and by `weight` [size] float32, in the dtype of `x`."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    return (wide * scale).mul_(weight).to(x.dtype)
