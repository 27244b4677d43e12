"""A Llama-family forward pass as the papers write it: float32, one sequence, whole attention matrices, no cache, no pages.

Takes the tensors of the engine's layout, or those of a GGUF file in the file's own order of rotary rows.
"""

import torch

from engine.models.shape import ModelShape


def reference_logits(
    shape: ModelShape,
    tensors: dict[str, torch.Tensor],
    ids: list[int],
    wanted: slice = slice(None),
    *,
    interleaved: bool = False,
) -> torch.Tensor:
    """[wanted positions, vocabulary] float32 logits after each of `ids`."""
    w = {name: tensor.float() for name, tensor in tensors.items() if ":" not in name}
    angles = _angles(shape, len(ids), w.get("rope_factors"))
    hidden = w["embed"][torch.tensor(ids)]
    sizes = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
    later = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
    for i in range(shape.num_layers):
        own = f"layers.{i}."
        x = _norm(hidden, w[own + "attn_norm"], shape.norm_eps)
        qkv = x @ w[own + "qkv"].T + w.get(own + "qkv_bias", torch.zeros(()))
        heads = qkv.view(len(ids), -1, shape.head_size).transpose(0, 1)
        q, k, v = heads.split(sizes)
        q, k = _turn(q, angles, interleaved), _turn(k, angles, interleaved)
        out = []
        for head in range(shape.num_heads):
            shared = head // (shape.num_heads // shape.num_kv_heads)
            scores = q[head] @ k[shared].T / shape.head_size**0.5
            out.append(scores.masked_fill(later, -torch.inf).softmax(-1) @ v[shared])
        hidden = (
            hidden + torch.cat(out, -1) @ w[own + "o"].T + w.get(own + "o_bias", torch.zeros(()))
        )
        x = _norm(hidden, w[own + "ffn_norm"], shape.norm_eps)
        gate, up = (x @ w[own + "gate_up"].T).chunk(2, -1)
        hidden = hidden + (gate / (1 + torch.exp(-gate)) * up) @ w[own + "down"].T
    final = _norm(hidden[wanted], w["norm"], shape.norm_eps)
    return final @ w["embed" if shape.tied else "head"].T


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def _angles(shape: ModelShape, length: int, factors: torch.Tensor | None) -> torch.Tensor:
    """[length, head_size / 2] unit complex numbers."""
    half = shape.head_size // 2
    speed = torch.tensor(
        [shape.rope_theta ** (-i / half) / shape.rope_scale for i in range(half)],
        dtype=torch.float64,
    )
    if factors is not None:
        speed = speed / factors
    turned = torch.arange(length)[:, None] * speed
    return torch.polar(torch.ones_like(turned), turned).to(torch.complex64)


def _turn(x: torch.Tensor, angles: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """[heads, length, head_size], each pair of numbers taken as a complex one and multiplied."""
    if interleaved:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(pairs * angles).flatten(-2)
    a, b = x.chunk(2, -1)
    pairs = torch.complex(a.contiguous(), b.contiguous()) * angles
    return torch.cat((pairs.real, pairs.imag), -1)
