"""Attention over paged KV in float64, one query and one head at a time: slow and obvious. Knows rules as Python functions."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

Score = Callable[[np.ndarray, int, np.ndarray, int, int], np.ndarray]
"""(scores [kv_len], q_pos, k_pos [kv_len], head, seq) -> scores, -inf where hidden."""


class Sequences(NamedTuple):
    """A batch: rows of the table, queries and keys of each sequence; queries are the last positions of the keys."""

    rows: Sequence[int]
    q_lens: Sequence[int]
    kv_lens: Sequence[int]


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    batch: Sequences,
    score: Score,
    scale: float,
    start: Sequence[float] | None = None,
) -> np.ndarray:
    """[num_tokens, heads, head_dim] float64. q, k, v hold numbers as stored; a row that sees nothing is 0."""
    queries, keys, values = (x.to(torch.float64).numpy() for x in (q, k, v))
    _, heads, _ = queries.shape
    _, kv_heads, block_size, _ = keys.shape
    out = np.zeros(queries.shape)
    token = 0
    for seq, (row, q_len, kv_len) in enumerate(zip(*batch, strict=True)):
        k_pos = np.arange(kv_len)
        blocks = table[row].numpy()[k_pos // block_size]
        for i in range(q_len):
            for head in range(heads):
                kv_head = head // (heads // kv_heads)
                s = keys[blocks, kv_head, k_pos % block_size] @ queries[token, head] * scale
                s = score(s, kv_len - q_len + i, k_pos, head, seq)
                first = -math.inf if start is None else start[head]
                top = max(s.max(initial=-math.inf), first)
                if top > -math.inf:
                    p = np.exp(s - top)
                    seen = p > 0
                    total = p.sum() + math.exp(first - top)
                    out[token, head] = (
                        p[seen] @ values[blocks, kv_head, k_pos % block_size][seen] / total
                    )
            token += 1
    return out
