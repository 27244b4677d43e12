"""What a `ScriptedExecutor` says: tokens as a pure function of (prompt, index, position), so that recomputing repeats them."""

import zlib

import numpy as np
from numpy.typing import NDArray


def mix(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """64 bits that depend on both halves, by the splitmix64 finaliser."""
    x = (high << np.uint64(32)) + low
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed


def seed_of(prompt: NDArray[np.int32], index: int) -> int:
    """Sequences of one prompt differ; the first depends on the prompt alone."""
    digest = zlib.crc32(prompt.tobytes())
    return zlib.crc32(index.to_bytes(4, "little"), digest) if index else digest


def scripted_tokens(
    seeds: NDArray[np.uint64], positions: NDArray[np.int32], vocab_size: int
) -> NDArray[np.int32]:
    """Tokens in [1, vocab_size) from (seed, position). Shapes [n], [n] -> [n] int32."""
    x = mix(seeds, positions.astype(np.uint64))
    return (np.uint64(1) + x % np.uint64(vocab_size - 1)).astype(np.int32)
