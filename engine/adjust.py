"""Changes one row's logits before the draw, and says how probable tokens were. Knows logits, parameters and past tokens.

What the model said comes first: log-probabilities are of the logits as they came, before any of these rules and before the
temperature. Then, in this order: repetition, presence and frequency penalties, bias, and the ban on stopping too early.
"""

from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.executor import SamplingParams, TokenLogprobs

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
