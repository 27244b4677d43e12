"""What the kernels compute, in float64 and in the plainest way: loops and textbook formulas, no tiles, no blocks of the cache.

Kernels are held to these within a stated tolerance. Knows no layouts: keys and values come as [positions, KV heads, head_dim].
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

F64 = NDArray[np.float64]
Score = Callable[[F64, int, NDArray[np.int64], int], F64]
"""(scores of one query, its position, key positions, query head) -> scores, -inf where a key must not be seen."""


def causal(scores: F64, position: int, keys: NDArray[np.int64], head: int) -> F64:
    """A query sees the keys up to its own position."""
    return np.where(keys <= position, scores, -np.inf)


def attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    start: int,
    scale: float | None = None,
    rule: Score = causal,
) -> F64:
    """Softmax attention of one sequence, [T, heads, head_dim]; zeros for a query that sees no key.

    Args:
        queries: [T, heads, head_dim] at positions start, start + 1, ...
        keys: [positions, KV heads, head_dim]; heads are grouped, KV head = head // (heads / KV heads).
        values: [positions, KV heads, head_dim].
        start: position of the first query.
        scale: of the scores; None: 1 / sqrt(head_dim).
        rule: changes and masks scores.

    Source: Vaswani et al. 2017, eq. 1; grouped queries from Ainslie et al. 2023.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (queries, keys, values))
    tokens, heads, head_dim = q.shape
    group = heads // k.shape[1]
    places = np.arange(len(k))
    out = np.zeros_like(q)
    for t in range(tokens):
        for h in range(heads):
            scores = k[:, h // group] @ q[t, h] * (head_dim**-0.5 if scale is None else scale)
            scores = rule(scores, start + t, places, h)
            seen = scores > -np.inf
            if seen.any():
                weights = np.exp(scores[seen] - scores[seen].max())
                out[t, h] = weights @ v[seen, h // group] / weights.sum()
    return out


def rotate(x: ArrayLike, positions: ArrayLike, theta: float) -> F64:
    """Rotary positions in half-split order on [T, heads, head_dim]. Source: Su et al. 2021, eq. 34."""
    wide = np.asarray(x, np.float64)
    half = wide.shape[-1] // 2
    angles = np.asarray(positions, np.float64)[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = wide[..., :half], wide[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def rms_norm(x: ArrayLike, weight: ArrayLike, epsilon: float) -> F64:
    """[..., n] scaled to unit mean square, times `weight`. Source: Zhang and Sennrich 2019, eq. 4."""
    wide = np.asarray(x, np.float64)
    return (
        wide / np.sqrt((wide**2).mean(-1, keepdims=True) + epsilon) * np.asarray(weight, np.float64)
    )


def swiglu(gate: ArrayLike, up: ArrayLike) -> F64:
    """Gate * sigmoid(gate) * up. Source: Shazeer 2020."""
    g = np.asarray(gate, np.float64)
    with np.errstate(over="ignore"):
        return g / (1 + np.exp(-g)) * np.asarray(up, np.float64)


def dequantise_q4_1(blocks: NDArray[np.uint8]) -> F64:
    """GGUF Q4_1 blocks uint8 [rows, groups, 20] as [rows, 32 * groups]: scale * q + minimum."""
    halves = blocks[..., :4].copy().view(np.float16).astype(np.float64)
    nibbles = np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], axis=-1)
    return (halves[..., :1] * nibbles + halves[..., 1:]).reshape(len(blocks), -1)


def dequantise_q8_0(blocks: NDArray[np.uint8]) -> F64:
    """GGUF Q8_0 blocks uint8 [rows, groups, 34] as [rows, 32 * groups]: scale * q."""
    scale = blocks[..., :2].copy().view(np.float16).astype(np.float64)
    return (scale * blocks[..., 2:].view(np.int8)).reshape(len(blocks), -1)
