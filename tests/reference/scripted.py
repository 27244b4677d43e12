"""What a `ScriptedExecutor` must say, whatever is batched, preempted or recomputed: the reference that streams are compared with."""

import numpy as np
from numpy.typing import NDArray

from engine.script import scripted_tokens, seed_of


def scripted_answer(
    prompt: NDArray[np.int32], num_tokens: int, vocab_size: int = 256, index: int = 0
) -> list[int]:
    """What a `ScriptedExecutor` without `answer` generates after `prompt`."""
    seeds = np.full(num_tokens, seed_of(prompt, index), np.uint64)
    positions = np.arange(len(prompt), len(prompt) + num_tokens, dtype=np.int32)
    tokens: list[int] = scripted_tokens(seeds, positions, vocab_size).tolist()
    return tokens
