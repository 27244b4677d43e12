"""One token from one row of logits in float64, filter by filter: slow and obvious. Sorts, where the kernels bisect."""

import math
from dataclasses import dataclass, field

import numpy as np

M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85


def philox4x32(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Philox 4x32-10 with Python's integers."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = M0 * x0, M1 * x2
        x0, x1, x2, x3 = (b >> 32) ^ x1 ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ x3 ^ k1, a & 0xFFFFFFFF
        k0, k1 = (k0 + W0) & 0xFFFFFFFF, (k1 + W1) & 0xFFFFFFFF
    return x0, x1, x2, x3


def uniform(seed: int, position: int) -> float:
    """53 bits of the first two words as a number in [0, 1)."""
    low = 0xFFFFFFFF
    words = philox4x32((position & low, position >> 32, 0, 0), (seed & low, seed >> 32))
    return ((words[0] << 32 | words[1]) >> 11) * 2.0**-53


@dataclass(frozen=True)
class Params:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    position: int = 0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    bias: dict[int, float] = field(default_factory=dict)


def adjusted(logits: np.ndarray, p: Params) -> np.ndarray:
    """Logits after penalties and bias, float32 arithmetic as on the device."""
    z = logits.astype(np.float32).copy()
    for token in set(p.prompt) | set(p.output):
        factor = np.float32(p.repetition)
        z[token] = z[token] / factor if z[token] > 0 else z[token] * factor
    for token in set(p.output):
        z[token] -= np.float32(p.presence + p.frequency * p.output.count(token))
    for token, value in p.bias.items():
        z[token] += np.float32(value)
    return z


def probabilities(logits: np.ndarray, p: Params) -> np.ndarray:
    """What a token is drawn from, float64 [vocab], not normalised, 0 where filtered."""
    z = adjusted(logits, p).astype(np.float64)
    w = np.exp((z - z.max()) / np.float64(np.float32(p.temperature)))
    order = np.argsort(-z, kind="stable")
    if 0 < p.top_k < len(z):
        w[z < z[order[p.top_k - 1]]] = 0
    if p.top_p < 1:
        running = np.cumsum(w[order])
        enough = int(np.searchsorted(running, np.float64(np.float32(p.top_p)) * w.sum()))
        w[z < z[order[min(enough, len(z) - 1)]]] = 0
    w[w < np.float64(np.float32(p.min_p))] = 0
    return w


def draw(logits: np.ndarray, p: Params) -> int:
    """The token."""
    if p.temperature == 0 or p.top_k == 1:
        return int(np.argmax(adjusted(logits, p)))
    running = np.cumsum(probabilities(logits, p))
    return int(np.searchsorted(running, uniform(p.seed, p.position) * running[-1], side="right"))


def logprob(logits: np.ndarray, token: int) -> float:
    """Log-probability under the model's own logits."""
    x = logits.astype(np.float64)
    return float(x[token] - x.max() - math.log(np.exp(x - x.max()).sum()))
