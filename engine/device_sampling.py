"""Sampling where the logits are, with the results of `engine.sampling`. Knows columns of parameters; knows no rows and keeps no state.

What travels: a few numbers a row to the device, a token and a flag a row back, which is the step's only wait.
"""

import numpy as np
import torch

from engine.models.device import Accelerator, Packed
from engine.sampling import I32, I64, SamplingRows
from kernels.sampling.draw import SamplingColumns, draw


class DeviceSampler:
    """Draws tokens on the device."""

    def __init__(self, accelerator: Accelerator) -> None:
        """Makes the columns of parameters that no row has yet: they are the same for all."""
        self._accelerator = accelerator
        device = accelerator.device
        self._ones = torch.ones(1, device=device)
        self._zeros = torch.zeros(1, device=device)
        self._none = torch.full((1,), -1, dtype=torch.int32, device=device)
        self._starts = torch.zeros(1, dtype=torch.int32, device=device)

    def sample(self, logits: torch.Tensor, rows: SamplingRows, counters: I64) -> tuple[I32, I64]:
        """As `engine.sampling.sample`, for `logits` on the device."""
        n = len(logits)
        if not n:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        words = [
            rows.temperature.view(np.int32),
            rows.top_p.view(np.int32),
            rows.top_k,
            rows.seed.view(np.int32),
            counters.astype(np.int64).view(np.int32),
        ]
        temperature, top_p, top_k, seed, counter = Packed.of(words, self._accelerator).views
        if len(self._ones) <= n:
            self._ones = self._ones.new_ones(2 * n)
            self._zeros = self._zeros.new_zeros(2 * n)
            self._none = self._none.new_full((2 * n,), -1)
            self._starts = self._starts.new_zeros(2 * n)
        drawn = draw(
            logits,
            SamplingColumns(
                temperature=temperature.view(torch.float32),
                top_k=top_k,
                top_p=top_p.view(torch.float32),
                min_p=self._zeros,
                seed=seed.view(torch.int64),
                counter=counter.view(torch.int64),
                repetition=self._ones,
                presence=self._zeros,
                frequency=self._zeros,
                count_row=self._none,
                counts=self._none,
                bias_start=self._starts,
                bias_token=self._none,
                bias_value=self._zeros,
            ),
        )
        result: I32 = torch.stack([drawn.token, drawn.finite]).cpu().numpy()
        return result[0].copy(), np.flatnonzero(result[1] == 0)
