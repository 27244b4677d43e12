"""Sampling where the logits are, with the results of `engine.adjust.draw_rows`. Knows columns of parameters; keeps no state.

What travels: a few numbers a row, and for rows with penalties the tokens that are there; a token and a flag a row come back, which
is the step's only wait.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.adjust import FORBIDDEN, Drawn, SpecialRow
from engine.executor import SamplingParams, TokenLogprobs
from engine.models.device import Accelerator, Packed
from engine.sampling import SamplingRows
from kernels.sampling.adjust import IN_PROMPT
from kernels.sampling.draw import SamplingColumns, draw, top_logprobs

I32 = NDArray[np.int32]


class DeviceSampler:
    """Draws tokens on the device."""

    def __init__(self, accelerator: Accelerator) -> None:
        """Keeps no memory between draws."""
        self._accelerator = accelerator

    def sample(
        self,
        logits: torch.Tensor,
        rows: SamplingRows,
        counters: NDArray[np.int64],
        special: Sequence[SpecialRow],
    ) -> Drawn:
        """As `engine.adjust.draw_rows`, for `logits` on the device, which stay as they are."""
        n = len(logits)
        if not n:
            return Drawn(np.zeros(0, np.int32), np.zeros(0, np.int64))
        drawn = draw(logits, self._columns(rows, counters, special, logits.shape[1]))
        result: I32 = torch.stack([drawn.token, drawn.finite]).cpu().numpy()
        tokens, finite = result[0].copy(), result[1]
        logprobs = _logprobs(logits, drawn.logprob, special)
        return Drawn(tokens, np.flatnonzero(finite == 0), logprobs)

    def _columns(
        self,
        rows: SamplingRows,
        counters: NDArray[np.int64],
        special: Sequence[SpecialRow],
        vocabulary: int,
    ) -> SamplingColumns:
        n = len(rows.seed)
        repetition = np.ones(n, np.float32)
        presence, frequency = np.zeros(n), np.zeros(n)
        count_row = np.full(n, -1, np.int32)
        penalised: list[SpecialRow] = []
        biases: list[list[tuple[int, float]]] = [[] for _ in range(n)]
        for row in special:
            params = row.params
            biases[row.place] = _biases(params, len(row.tokens) - row.num_prompt)
            repetition[row.place] = params.repetition_penalty
            presence[row.place] = params.presence_penalty
            frequency[row.place] = params.frequency_penalty
            if params.penalises:
                count_row[row.place] = len(penalised)
                penalised.append(row)
        flat = [entry for own in biases for entry in own]
        columns: list[NDArray[Any]] = [
            rows.temperature,
            rows.top_k,
            rows.top_p,
            rows.min_p,
            rows.seed,
            counters,
            repetition,
            presence,
            frequency,
            count_row,
            np.cumsum([0, *map(len, biases)], dtype=np.int32),
            np.array([token for token, _ in flat], np.int32),
            np.array([value for _, value in flat], np.float32),
        ]
        words = [np.ascontiguousarray(c).view(np.int32) for c in columns]
        views = Packed.of(words, self._accelerator).views
        typed = [
            view.view(getattr(torch, "int64" if c.dtype == np.uint64 else c.dtype.name))
            for view, c in zip(views, columns, strict=True)
        ]
        typed.insert(10, self._counts(penalised, vocabulary))
        return SamplingColumns(*typed)

    def _counts(self, penalised: Sequence[SpecialRow], vocabulary: int) -> torch.Tensor:
        """[rows, vocabulary] how often each token was generated, plus `IN_PROMPT` where the prompt has it."""
        device = self._accelerator.device
        counts = torch.zeros((max(len(penalised), 1), vocabulary), dtype=torch.int32, device=device)
        for own, row in zip(counts, penalised, strict=False):
            tokens = torch.from_numpy(row.tokens.astype(np.int64)).to(device)
            prompt, generated = tokens[: row.num_prompt], tokens[row.num_prompt :]
            own[prompt] = IN_PROMPT
            own.scatter_add_(0, generated, torch.ones_like(generated, dtype=torch.int32))
        return counts


def _biases(params: SamplingParams, num_generated: int) -> list[tuple[int, float]]:
    """What is added to logits: the biases, and what forbids to stop too early."""
    if num_generated >= params.min_tokens:
        return list(params.logit_bias)
    banned = dict.fromkeys(params.stop_ids, float(FORBIDDEN))
    return [(t, v) for t, v in params.logit_bias if t not in banned] + list(banned.items())


def _logprobs(
    logits: torch.Tensor, drawn: torch.Tensor, special: Sequence[SpecialRow]
) -> tuple[tuple[int, TokenLogprobs], ...]:
    """What rows that ask for it are told; `drawn` [n] are the tokens' own log-probabilities."""
    asking = [row for row in special if row.params.logprobs is not None]
    if not asking:
        return ()
    places = torch.tensor([row.place for row in asking], device=logits.device)
    wanted = [row.params.logprobs or 0 for row in asking]
    own = drawn[places].tolist()
    if not max(wanted):
        return tuple((r.place, TokenLogprobs(x)) for r, x in zip(asking, own, strict=True))
    tokens, values = top_logprobs(logits[places], max(wanted))
    return tuple(
        (row.place, TokenLogprobs(x, tuple(ids[:k]), tuple(logprobs[:k])))
        for row, x, ids, logprobs, k in zip(
            asking, own, tokens.tolist(), values.tolist(), wanted, strict=True
        )
    )
