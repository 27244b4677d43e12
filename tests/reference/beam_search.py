"""Beam search as one would write it first: lists of token lists, every candidate sorted. Slow and obvious."""

from collections.abc import Callable, Sequence

import numpy as np


def plain_beam_search(
    log_probs: Callable[[Sequence[int]], np.ndarray],
    width: int,
    max_tokens: int,
    ends: frozenset[int],
    length_penalty: float,
) -> list[tuple[list[int], float]]:
    """The `width` best (tokens, score), best first; `log_probs(generated)` are those of the next token.

    Runs to `max_tokens`, whatever has finished; an answer that ends is listed without its ending token.
    """
    live: list[tuple[list[int], float]] = [([], 0.0)]
    done: list[tuple[list[int], float, int]] = []
    for _ in range(max_tokens):
        candidates = []
        for place, (tokens, score) in enumerate(live):
            values = log_probs(tokens)
            # No more than these of one hypothesis can count.
            for token in np.argsort(-values, kind="stable")[: width + len(ends)].tolist():
                candidates.append((score + float(values[token]), place, token))
        candidates.sort(key=lambda c: (-c[0], c[1], c[2]))
        following: list[tuple[list[int], float]] = []
        for score, place, token in candidates:
            if token in ends:
                done.append((live[place][0], score, len(live[place][0]) + 1))
            else:
                following.append(([*live[place][0], token], score))
            if len(following) == width:
                break
        live = following
    done += [(tokens, score, len(tokens)) for tokens, score in live]
    done.sort(key=lambda d: d[1] / d[2] ** length_penalty, reverse=True)
    return [(tokens, score) for tokens, score, _ in done[:width]]
