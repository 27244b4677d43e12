"""Draws tokens from logits, many rows at once. Knows logits, parameters and positions; knows no sequences and keeps no state.

A draw is a function of (logits of the row, parameters of the row, seed, counter), the counter being the token's position and which
of its request's sequences it is in: no generator advances, so neighbours, batch order, chunking and preemption cannot change it.

Filter order: logits are divided by the temperature; top-k keeps the k largest; top-p keeps the smallest set of the most
probable of these whose probability, among these, reaches p; min-p keeps what is at least so many times as probable as the
most probable. All keep whole ties, so the kept set never depends on how equal logits were sorted. The token is where one uniform number falls in the kept probabilities, in order of token id.
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

_STRETCH: Final = 256


class SamplingRows(Struct, frozen=True, eq=False):
    """Parameters of n rows, as columns."""

    temperature: F32
    top_p: F32
    top_k: I32
    seed: U64
    min_p: F32


def sample(logits: torch.Tensor, rows: SamplingRows, positions: I64) -> tuple[I32, I64]:
    """Tokens [n] for `logits` [n, vocabulary] float32, and the places of rows whose logits are not all finite.

    `positions` [n]: the lower 32 bits are where each token will stand in its sequence, the upper ones which sequence of its
    request that is, so that sequences of one seed differ. Greedy rows take the lowest id of the largest logits.
    A row that is not finite gets token 0. The other rows are unaffected by it.
    """
    best, tokens = logits.max(dim=-1)
    out = tokens.numpy().astype(np.int32)
    bad = np.flatnonzero(~np.isfinite(best.numpy()) | ~np.isfinite(logits.amin(-1).numpy()))
    drawn = (rows.temperature > 0) & (rows.top_p > 0) & (rows.top_k != 1)
    drawn[bad] = False
    index = np.flatnonzero(drawn)
    numbers = uniform(rows.seed[index], positions[index])
    for i, number in zip(index.tolist(), numbers.tolist(), strict=True):
        out[i] = _draw(
            logits[i].numpy(),
            float(rows.temperature[i]),
            float(rows.top_p[i]),
            int(rows.top_k[i]),
            float(rows.min_p[i]),
            number,
        )
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


def _draw(
    logits: F32, temperature: float, top_p: float, top_k: int, min_p: float, number: float
) -> int:
    """The token of one row [vocabulary] of finite logits for a uniform number."""
    vocabulary, peak = len(logits), logits.max()
    if 0 < top_k < vocabulary:
        ids = np.flatnonzero(logits >= np.partition(logits, -top_k)[-top_k])
        weights = np.exp((logits[ids].astype(np.float64) - peak) / temperature)
        mass = weights.sum()
    else:
        every = _weights(logits, peak, temperature)
        if top_p >= 1 and min_p <= 0:
            return _place(every, number)
        # All weights below this together are less than the 1 - p that top-p may leave out, so it keeps none of them.
        # Those below min-p are kept here where top-p counts them.
        least = max((1 - top_p) / (2 * vocabulary), min_p if top_p >= 1 else 0.0)
        ids = np.flatnonzero(every >= least)
        weights = every[ids].astype(np.float64)
        mass = every.sum(dtype=np.float64)
    if top_p < 1:
        falling = np.sort(weights)[::-1]
        last = min(np.searchsorted(falling.cumsum(), top_p * mass), len(falling) - 1)
        keep = weights >= falling[last]
        ids, weights = ids[keep], weights[keep]
    if min_p > 0:
        keep = weights >= min_p
        ids, weights = ids[keep], weights[keep]
    sums = weights.cumsum()
    return int(ids[np.searchsorted(sums, number * sums[-1], side="right")])


def _weights(logits: F32, peak: np.float32, temperature: float) -> F32:
    """Probabilities up to a factor: 1 for the largest logit."""
    with np.errstate(over="ignore"):
        scaled: F32 = (logits - peak) / np.float32(temperature)
    np.exp(scaled, out=scaled)
    return scaled


def _place(weights: F32, number: float) -> int:
    """Where `number` of the whole mass falls: first among sums of stretches, then within one."""
    sums = np.add.reduceat(weights, np.arange(0, len(weights), _STRETCH), dtype=np.float64).cumsum()
    target = number * sums[-1]
    stretch = int(np.searchsorted(sums, target, side="right"))
    if stretch:
        target -= sums[stretch - 1]
    begin = stretch * _STRETCH
    inner = weights[begin : begin + _STRETCH].cumsum(dtype=np.float64)
    return begin + min(int(np.searchsorted(inner, target, side="right")), _last_positive(inner))


def _last_positive(sums: F64) -> int:
    """The last place that adds to the sums, so that rounding never picks a token of no probability."""
    return int(np.searchsorted(sums, sums[-1]))
