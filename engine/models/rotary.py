"""Rotary positions in half-split order: dimension i turns with dimension i + half. Knows angles; knows no cache."""

import torch

from engine.models.shape import ModelShape


class Rotary:
    """Cosines and sines of every position up to a limit, in float32.

    Source: Su et al., RoFormer, section 3.2; angles are made in float64.
    """

    def __init__(
        self, shape: ModelShape, max_context: int, factors: torch.Tensor | None = None
    ) -> None:
        """`factors`: [head_size / 2], by which each frequency is divided (Llama 3's long context)."""
        half = shape.head_size // 2
        exponents = torch.arange(half, dtype=torch.float64) / half
        frequencies = shape.rope_theta**-exponents / shape.rope_scale
        if factors is not None:
            frequencies /= factors.double()
        angles = torch.arange(max_context, dtype=torch.float64)[:, None] * frequencies
        self.cos = angles.cos().float()
        """[max_context, head_size / 2] float32."""
        self.sin = angles.sin().float()

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of `positions` [T], each [T, 1, head_size / 2]."""
        return self.cos[positions][:, None], self.sin[positions][:, None]

    @staticmethod
    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[T, heads, head_size] turned, in the dtype of `x`; computed in float32."""
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)
