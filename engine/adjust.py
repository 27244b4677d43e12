"""Changes rows' logits before the draw, and says how probable tokens were. Knows logits, parameters and past tokens.

What the model said comes first: log-probabilities are of the logits as they came, before any of these rules and before the
temperature. Then, in this order: repetition, presence and frequency penalties, bias, and the ban on stopping too early.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from engine.executor import SamplingParams, TokenLogprobs
from engine.sampling import SamplingRows, sample

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

FORBIDDEN: Final = np.float32(-1e30)
"""A logit that is never drawn, and finite, so that it is not taken for a fault."""


def adjust(logits: F32, params: SamplingParams, tokens: I32, num_prompt: int) -> None:
    """Applies the rules of `params` to `logits` [vocabulary], in place; `tokens` are the row's, prompt first.

    Repetition divides positive logits and multiplies negative ones for every token that is there (Keskar et al., 2019, section
    4.1); presence and frequency count generated tokens only, as OpenAI's API documents them.
    """
    generated = tokens[num_prompt:]
    if params.repetition_penalty != 1.0:
        seen = np.unique(tokens)
        values = logits[seen]
        factor = np.float32(params.repetition_penalty)
        logits[seen] = np.where(values > 0, values / factor, values * factor)
    if params.presence_penalty or params.frequency_penalty:
        said, counts = np.unique(generated, return_counts=True)
        weights = params.presence_penalty + params.frequency_penalty * counts
        logits[said] -= weights.astype(np.float32)
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias, strict=True)
        logits[list(ids)] += np.array(biases, np.float32)
    if len(generated) < params.min_tokens and params.stop_ids:
        logits[list(params.stop_ids)] = FORBIDDEN


class Spoken(Struct, frozen=True, eq=False):
    """Log-probabilities of one row, [vocabulary] float32."""

    values: F32
    num_top: int

    def of(self, token: int) -> TokenLogprobs:
        """What is reported of `token`: its log-probability and the most probable tokens with theirs."""
        top = np.argpartition(-self.values, self.num_top)[: self.num_top] if self.num_top else ()
        ranked = sorted((-float(self.values[i]), int(i)) for i in top)
        return TokenLogprobs(
            float(self.values[token]),
            tuple(i for _, i in ranked),
            tuple(-negative for negative, _ in ranked),
        )


def spoken(logits: F32, num_top: int) -> Spoken:
    """The log-probabilities of finite `logits` [vocabulary]; keeps no reference to them."""
    shifted = logits - logits.max()
    values: F32 = shifted - np.float32(np.log(np.exp(shifted, dtype=np.float64).sum()))
    return Spoken(values, num_top)


class SpecialRow(Struct, frozen=True, eq=False):
    """A row whose logits are changed or reported."""

    place: int
    """Which row of the logits."""
    params: SamplingParams
    tokens: I32
    """What is there before the token that is drawn, prompt first."""
    num_prompt: int


class Drawn(Struct, frozen=True, eq=False):
    """What was drawn for n rows."""

    tokens: I32
    """[n]."""
    bad: NDArray[np.int64]
    """Rows whose logits are not all finite; their token is 0."""
    logprobs: tuple[tuple[int, TokenLogprobs], ...] = ()
    """(row, what was asked) for rows that ask for it."""


def draw_rows(
    logits: torch.Tensor,
    rows: SamplingRows,
    counters: NDArray[np.int64],
    special: Sequence[SpecialRow],
) -> Drawn:
    """Draws from `logits` [n, vocabulary] float32, which are changed in place for rows that ask for it; see `engine.sampling.sample`."""
    reported: list[tuple[int, Spoken]] = []
    for row in special:
        values = logits[row.place].numpy()
        if row.params.logprobs is not None:
            reported.append((row.place, spoken(values, row.params.logprobs)))
        if row.params.adjusts:
            adjust(values, row.params, row.tokens, row.num_prompt)
    tokens, bad = sample(logits, rows, counters)
    return Drawn(tokens, bad, tuple((i, said.of(int(tokens[i]))) for i, said in reported))
