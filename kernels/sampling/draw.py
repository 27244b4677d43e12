"""Draws one token a row on the device, as the CPU sampler does. Knows logits, parameters and counters; knows no sequences.

A draw is a function of the row's logits, parameters, seed and counter: no generator advances, so neighbours, batch order,
chunking and preemption cannot change it. Order of what is done to a row's logits:

 1. repetition penalty: logits of tokens in the prompt or the output are divided by it where positive, multiplied where not.
 2. presence and frequency penalties: for tokens in the output, presence once and frequency times their count are subtracted.
 3. `bias` is added. A bias of -1e30 forbids a token.
 4. Temperature 0, or top-k of 1: the lowest id of the largest logits. Otherwise logits are divided by the temperature.
 5. top-k keeps the k largest; top-p keeps the smallest set of the most probable of these whose probability, among these,
    reaches p. Both keep whole ties.
 6. min-p keeps tokens with at least min_p times the largest probability.
 7. The token is where one uniform number falls in the kept probabilities, in order of token id.

Probabilities and their sums are float64, so that this and another order of the same sums differ in the sixteenth place. The
uniform number is 53 bits of Philox 4x32-10 with the seed as its key (`kernels/sampling/philox.py`).
Log-probabilities are those of the model's own logits, before step 1.
"""

from typing import NamedTuple

import torch
import triton

from kernels.sampling.adjust import adjust_constants, adjust_kernel
from kernels.sampling.choose import draw_constants, draw_kernel
from kernels.sampling.weigh import weigh_constants, weigh_kernel

CHUNK = 4096
"""Tokens of one program of the first two kernels, and of one turn of the third's loops."""


class SamplingColumns(NamedTuple):
    """Parameters of n rows on the device, one tensor a column.

    temperature, top_p, min_p, repetition: fp32 [n] and presence, frequency: fp64 [n] (off: 1, 1, 0, 1, 0, 0); top_k: int32 [n], 0 is off;
    seed: int64 [n], the bits of an unsigned number; counter: int64 [n], in its lower 32 bits where the token will stand in its sequence, in the
    upper ones which sequence of its request that is;
    count_row: int32 [n], the row of `counts` that penalties read, -1 for none; counts: int32 [rows, vocab], occurrences in the
    output, plus 2^30 where the prompt holds the token; bias_start: int32 [n + 1], bias_token: int32, bias_value: fp32: row i adds
    entries bias_start[i] to bias_start[i + 1].
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    counter: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    count_row: torch.Tensor
    counts: torch.Tensor
    bias_start: torch.Tensor
    bias_token: torch.Tensor
    bias_value: torch.Tensor


class Drawn(NamedTuple):
    """token: int32 [n]; logprob: fp32 [n], of the token under the model's logits; finite: int32 [n], 0 for rows with logits that are
    not finite, whose token is 0.
    """

    token: torch.Tensor
    logprob: torch.Tensor
    finite: torch.Tensor


def draw(logits: torch.Tensor, columns: SamplingColumns, chunk: int = CHUNK) -> Drawn:
    """One token for each row of `logits` [n, vocab] fp16, bf16 or fp32, vocab contiguous.

    Raises:
        ValueError: logits are not contiguous along the vocabulary, or columns have another number of rows.
    """
    n, vocab = logits.shape
    if logits.stride(1) != 1:
        raise ValueError(
            f"logits must be contiguous along the vocabulary, got strides {logits.stride()}"
        )
    if len(columns.temperature) != n:
        raise ValueError(f"{len(columns.temperature)} rows of parameters for {n} rows of logits")
    chunks = triton.cdiv(vocab, chunk)

    def new(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    z, w = new(torch.float32, n, vocab), new(torch.float64, n, vocab)
    top, low, raw_top, raw_sum = (new(torch.float32, n, chunks) for _ in range(4))
    top_token = new(torch.int32, n, chunks)
    out = Drawn(new(torch.int32, n), new(torch.float32, n), new(torch.int32, n))
    if n == 0:
        return out
    x = columns
    adjust_kernel[(n, chunks)](
        logits, z, top, top_token, low, raw_top, raw_sum,
        x.repetition, x.presence, x.frequency, x.count_row, x.counts,
        x.bias_start, x.bias_token, x.bias_value, vocab, logits.stride(0),
        **adjust_constants(chunk),
    )  # fmt: skip
    weigh_kernel[(n, chunks)](z, w, top, x.temperature, vocab, **weigh_constants(chunk, chunks))
    draw_kernel[(n,)](
        out.token, out.logprob, out.finite, logits, z, w, top, top_token, low, raw_top, raw_sum,
        x.temperature, x.top_k, x.top_p, x.min_p, x.seed, x.counter,
        vocab, chunks, logits.stride(0),
        **draw_constants(chunk, chunks),
    )  # fmt: skip
    return out


def top_logprobs(logits: torch.Tensor, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(token ids int64 [n, num], log-probabilities fp32 [n, num]) of the most probable tokens under the model's own logits."""
    values, tokens = logits.float().topk(num, dim=-1)
    return tokens, values - logits.float().logsumexp(-1, keepdim=True)
