"""Draws tokens from logits, many rows at once. Knows logits, parameters and positions; knows no sequences and keeps no state.

A draw is a function of (logits of the row, parameters of the row, seed, position): no generator advances, so neighbours,
batch order, chunking and preemption cannot change it.

Filter order: logits are divided by the temperature; top-k keeps the k largest; top-p keeps the smallest set of the most
probable of these whose probability, among these, reaches p. Both keep whole ties, so the kept set never depends on how
equal logits were sorted. The token is where one uniform number falls in the kept probabilities, in order of token id.
"""

from typing import Final

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

_MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS: Final = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)
_ROUNDS: Final = 10

_HEAD: Final = 512
"""How many of the largest logits are looked at first: nearly every top-p set ends before that."""


class SamplingRows(Struct, frozen=True, eq=False):
    """Parameters of n rows, as columns."""

    temperature: F32
    top_p: F32
    top_k: I32
    seed: U64


def sample(logits: torch.Tensor, rows: SamplingRows, positions: I64) -> tuple[I32, I64]:
    """Tokens [n] for `logits` [n, vocabulary] float32, and the places of rows whose logits are not all finite.

    `positions` [n] is where each token will stand in its sequence. Greedy rows take the lowest id of the largest logits.
    A row that is not finite gets token 0. The other rows are unaffected by it.
    """
    best, tokens = logits.max(dim=-1)
    out = tokens.numpy().astype(np.int32)
    bad = np.flatnonzero(~np.isfinite(best.numpy()) | ~np.isfinite(logits.amin(-1).numpy()))
    drawn = (rows.temperature > 0) & (rows.top_k != 1)
    drawn[bad] = False
    if drawn.any():
        index = np.flatnonzero(drawn)
        chosen = SamplingRows(
            rows.temperature[index], rows.top_p[index], rows.top_k[index], rows.seed[index]
        )
        out[index] = _draw(logits[torch.from_numpy(index)], chosen, positions[index])
    out[bad] = 0
    return out, bad


def uniform(seeds: U64, positions: I64) -> F64:
    """One number in [0, 1) for each (seed, position), 53 bits of the first two words of Philox 4x32-10."""
    words = philox(seeds, positions.astype(np.uint64))
    bits = (words[:, 0].astype(np.uint64) << _HALF) | words[:, 1]
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def philox(keys: U64, counters: U64) -> U32:
    """[n, 4] words of Philox 4x32-10 for the keys [n] and the counters [n], whose upper 64 bits are 0.

    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011), section 4.3.
    """
    k0, k1 = keys & _LOW, keys >> _HALF
    x0, x1 = counters & _LOW, counters >> _HALF
    x2, x3 = np.zeros_like(x0), np.zeros_like(x0)
    for _ in range(_ROUNDS):
        first, second = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0, x1 = (second >> _HALF) ^ x1 ^ k0, second & _LOW
        x2, x3 = (first >> _HALF) ^ x3 ^ k1, first & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return np.stack([x0, x1, x2, x3], axis=1).astype(np.uint32)


def _draw(logits: torch.Tensor, rows: SamplingRows, positions: I64) -> I64:
    """Tokens of rows that are not greedy and whose logits are finite."""
    scaled = logits.double()
    scaled -= scaled.amax(-1, keepdim=True)
    scaled /= torch.from_numpy(rows.temperature)[:, None]
    floor = _floors(scaled, rows)
    weights = scaled.exp_()
    weights.masked_fill_(weights < floor.exp()[:, None], 0)
    sums = weights.cumsum_(-1)
    targets = torch.from_numpy(uniform(rows.seed, positions))[:, None] * sums[:, -1:]
    return torch.searchsorted(sums, targets, right=True)[:, 0].numpy()


def _floors(scaled: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """[n] the smallest scaled logit that each row's filters keep."""
    n, vocabulary = scaled.shape
    floors = torch.full((n,), -torch.inf, dtype=torch.float64)
    top_k = np.where(rows.top_k > 0, np.minimum(rows.top_k, vocabulary), vocabulary)
    filtered = np.flatnonzero((top_k < vocabulary) | (rows.top_p < 1))
    for width in (min(_HEAD, vocabulary), vocabulary):
        if not len(filtered):
            break
        index = torch.from_numpy(filtered)
        limits, settled = _floors_within(
            scaled[index], top_k[filtered], rows.top_p[filtered], width
        )
        floors[index] = torch.where(settled, limits, floors[index])
        filtered = filtered[~settled.numpy()]
    return floors


def _floors_within(
    scaled: torch.Tensor, top_k: NDArray[np.integer], top_p: F32, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """[n] floors found among each row's `width` largest logits, and [n] whether they are to be trusted."""
    largest = scaled.topk(width).values
    k = torch.from_numpy(top_k.astype(np.int64))
    p = torch.from_numpy(top_p.astype(np.float64))
    inside = k <= width
    by_k = largest.gather(1, (k.clamp(max=width) - 1)[:, None])
    bounded = k < scaled.shape[1]
    weights = scaled.exp()
    mass = torch.where(bounded, weights.masked_fill(scaled < by_k, 0).sum(-1), weights.sum(-1))
    running = largest.exp().cumsum(-1)
    reach = torch.searchsorted(running, (p * mass)[:, None])
    found = (reach[:, 0] < width) & (p < 1)
    by_p = largest.gather(1, reach.clamp(max=width - 1))
    floors = torch.maximum(
        torch.where(bounded, by_k[:, 0], -torch.inf), torch.where(found, by_p[:, 0], -torch.inf)
    )
    settled = (inside | ~bounded) & (found | (p >= 1)) if width < scaled.shape[1] else p == p
    return floors, settled
