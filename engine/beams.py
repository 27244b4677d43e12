"""Beam search: which token continues which hypothesis. Pure arithmetic on scores; knows no model, no plans, no text.

A beam of width w keeps w live hypotheses. Each step ranks every (hypothesis, token) by the sum of log probabilities,
ties by hypothesis and then by token. In that order, continuations that end the answer become finished hypotheses until
w live ones are found; what ranks below the last of these is dropped.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]


class BeamStep(Struct, frozen=True, eq=False):
    """How a beam goes on. Entry i is hypothesis i from now on."""

    parents: I32
    """[w] which hypothesis, 0 to w - 1, each continues."""
    tokens: I32
    """[w] with which token."""
    scores: F64
    """[w] sum of log probabilities."""
    finished: tuple[tuple[int, int, float], ...]
    """(parent, ending token, score) of what ended, best first."""


def next_beam(
    log_probs: NDArray[np.float32], scores: F64, ends: frozenset[int], *, first: bool
) -> BeamStep:
    """One step of a beam.

    Args:
        log_probs: [w, vocabulary] of each live hypothesis' next token.
        scores: [w] of the hypotheses.
        ends: tokens that end an answer.
        first: the hypotheses are still one and the same, the prompt: only the first counts.
    """
    width, vocabulary = log_probs.shape
    totals = log_probs[: 1 if first else width].astype(np.float64)
    totals += scores[: len(totals), None]
    flat = totals.ravel()
    wanted = min(len(flat), width + len(totals) * len(ends))
    border = np.partition(flat, len(flat) - wanted)[len(flat) - wanted]
    candidates = np.flatnonzero(flat >= border)
    order = candidates[np.lexsort((candidates, -flat[candidates]))]
    parents, tokens, kept = [], [], []
    finished = []
    for at in order.tolist():
        parent, token = divmod(at, vocabulary)
        if token in ends:
            finished.append((parent, token, float(flat[at])))
            continue
        parents.append(parent)
        tokens.append(token)
        kept.append(float(flat[at]))
        if len(parents) == width:
            break
    return BeamStep(
        np.array(parents, np.int32), np.array(tokens, np.int32), np.array(kept), tuple(finished)
    )


class Hypothesis(Struct, frozen=True):
    """A possible answer."""

    tokens: tuple[int, ...]
    """Without the token that ended it."""
    score: float
    """Sum of log probabilities, the ending token's included."""
    length: int
    """Generated tokens, the ending one included."""
    ended: bool
    """By a stop token, rather than by its length."""


class Hypotheses:
    """The histories of one beam, and what has finished so far."""

    def __init__(self, width: int, max_tokens: int | None, length_penalty: float) -> None:
        """`length_penalty` p: hypotheses are ranked by score / length ** p. Without `max_tokens` only the core's limit ends it."""
        self.width = width
        self._max_tokens = max_tokens
        self._penalty = length_penalty
        self._live: list[tuple[int, ...]] = [()] * width
        self._scores: F64 = np.zeros(width)
        self._finished: list[Hypothesis] = []

    def advance(self, step: BeamStep) -> None:
        """Takes in a step that counts."""
        length = len(self._live[0]) + 1
        for parent, _, score in step.finished:
            self._finished.append(Hypothesis(self._live[parent], score, length, ended=True))
        self._live = [
            (*self._live[parent], token)
            for parent, token in zip(step.parents.tolist(), step.tokens.tolist(), strict=True)
        ]
        self._scores = step.scores

    def is_settled(self, step: BeamStep) -> bool:
        """Whether, with `step`, no live hypothesis can come among the `width` best any more."""
        length = len(self._live[0]) + 1
        ranks = [self._rank(h.score, h.length) for h in self._finished]
        ranks += [self._rank(score, length) for _, _, score in step.finished]
        if len(ranks) < self.width:
            return False
        worst = sorted(ranks, reverse=True)[self.width - 1]
        if self._penalty > 0 and self._max_tokens is None:
            return False
        longest = self._max_tokens if self._penalty > 0 and self._max_tokens else length + 1
        return worst >= self._rank(float(step.scores.max()), longest)

    def best(self, count: int) -> list[Hypothesis]:
        """The `count` best, live ones included; ties in the order in which they were found."""
        live = [
            Hypothesis(tokens, float(score), len(tokens), ended=False)
            for tokens, score in zip(self._live, self._scores, strict=True)
        ]
        every = self._finished + live
        return sorted(every, key=lambda h: self._rank(h.score, h.length), reverse=True)[:count]

    def _rank(self, score: float, length: int) -> float:
        return float(score / max(length, 1) ** self._penalty)
