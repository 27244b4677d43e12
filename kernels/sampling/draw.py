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

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from kernels.sampling.order import key_of, reach
from kernels.sampling.philox import uniform
from kernels.tile_sizes import next_power_of_two

CHUNK = 4096
"""Tokens of one program of the first two kernels, and of one turn of the third's loops."""
IN_PROMPT = 1 << 30
"""Added to a token's count where the prompt holds it."""
ALL_COUNTS = tl.constexpr(IN_PROMPT - 1)


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


@triton.jit
def adjust_kernel(
    logits_ptr,  # [n, vocab] fp16, bf16 or fp32
    z_ptr,  # fp32 [n, vocab] out: adjusted logits
    top_ptr,  # fp32 [n, chunks] out: largest of them
    top_token_ptr,  # int32 [n, chunks] out: its lowest id
    low_ptr,  # fp32 [n, chunks] out: smallest of them
    raw_top_ptr,  # fp32 [n, chunks] out: largest of the model's own logits
    raw_sum_ptr,  # fp32 [n, chunks] out: sum of exp(logit - raw_top)
    repetition_ptr,
    presence_ptr,
    frequency_ptr,
    count_row_ptr,
    counts_ptr,
    bias_start_ptr,
    bias_token_ptr,
    bias_value_ptr,
    vocab,
    logits_stride,
    C: tl.constexpr,
):
    """Adds bias and penalties to C logits of one row (steps 1 to 3), and leaves what the other kernels need of them.

    Traffic of a row's programs together in bytes, `e` those of a logit; PENALISED is 0 or 1:

        loads: vocab * e + 12 * chunks + 8 * biases * chunks + PENALISED * (4 * vocab + 20 * chunks)
        stores: 4 * vocab + 20 * chunks
    """
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    chunks = tl.num_programs(1)
    wide = row.to(tl.int64)
    token = chunk * C + tl.arange(0, C)
    live = token < vocab
    raw = tl.load(logits_ptr + wide * logits_stride + token, mask=live, other=float("-inf"))  # wide
    raw = raw.to(tl.float32)
    # a row with NaN or infinities draws nothing: told by its smallest logit, and calmed here so that sums stay numbers
    odd = tl.sum((live & ~(tl.abs(raw) < float("inf"))).to(tl.int32), 0) > 0
    raw = tl.where(live & odd, 0.0, raw)
    place = wide * chunks + chunk
    raw_top = tl.max(raw, 0)
    tl.store(raw_top_ptr + place, raw_top)
    tl.store(raw_sum_ptr + place, tl.sum(tl.exp(raw - raw_top), 0))

    z = raw
    count_row = tl.load(count_row_ptr + row)
    if count_row >= 0:
        count = tl.load(counts_ptr + count_row.to(tl.int64) * vocab + token, mask=live, other=0)
        repetition = tl.load(repetition_ptr + row)
        penalised = tl.where(z > 0, z / repetition, z * repetition)
        z = tl.where(count > 0, penalised, z)
        times = count & ALL_COUNTS
        each = tl.load(frequency_ptr + row) * times.to(tl.float64) + tl.load(presence_ptr + row)
        z -= tl.where(times > 0, each, 0.0).to(tl.float32)
    for i in range(tl.load(bias_start_ptr + row), tl.load(bias_start_ptr + row + 1)):
        z += tl.where(token == tl.load(bias_token_ptr + i), tl.load(bias_value_ptr + i), 0.0)
    tl.store(z_ptr + wide * vocab + token, z, mask=live)
    top, top_place = tl.max(z, 0, return_indices=True)
    tl.store(top_ptr + place, top)
    tl.store(top_token_ptr + place, chunk * C + top_place)
    low = tl.min(tl.where(live, z, float("inf")), 0)
    tl.store(low_ptr + place, tl.where(odd, float("-inf"), low))


@triton.jit
def weigh_kernel(
    z_ptr,  # fp32 [n, vocab]
    w_ptr,  # fp64 [n, vocab] out: exp((z - largest) / temperature)
    top_ptr,  # fp32 [n, chunks]
    temperature_ptr,
    vocab,
    C: tl.constexpr,
    CHUNKS: tl.constexpr,  # power of two, chunks or more
):
    """Weighs C tokens of one row, the most probable as 1. Greedy rows are left alone.

    Traffic of a row's programs together in bytes:

        loads: 4 * vocab + 4 * chunks + 4 * chunks * chunks
        stores: 8 * vocab
    """
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    chunks = tl.num_programs(1)
    wide = row.to(tl.int64)
    temperature = tl.load(temperature_ptr + row)
    if temperature <= 0.0:
        return
    c = tl.arange(0, CHUNKS)
    top = tl.max(tl.load(top_ptr + wide * chunks + c, mask=c < chunks, other=float("-inf")), 0)
    token = chunk * C + tl.arange(0, C)
    live = token < vocab
    z = tl.load(z_ptr + wide * vocab + token, mask=live, other=float("-inf"))  # wide
    scaled = (z.to(tl.float64) - top.to(tl.float64)) / temperature.to(tl.float64)
    tl.store(w_ptr + wide * vocab + token, tl.exp(scaled), mask=live)


@triton.jit(do_not_specialize=["chunks"])
def draw_kernel(
    token_ptr,  # int32 [n] out
    logprob_ptr,  # fp32 [n] out
    finite_ptr,  # int32 [n] out
    logits_ptr,
    z_ptr,
    w_ptr,
    top_ptr,
    top_token_ptr,
    low_ptr,
    raw_top_ptr,
    raw_sum_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    counter_ptr,
    vocab,
    chunks,
    logits_stride,
    C: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Filters and draws one row (steps 4 to 7).

    Traffic of one program in bytes, without top-k and top-p; `piece` is the tokens in the drawn token's chunk. Each pass of a
    filter's bisection (about 20) reads 4 * vocab for top-k, 12 * vocab for top-p; top-p takes one pass more for the mass.

        loads: 12 * vocab + 12 * piece + 20 * chunks - 4 * (chunks - best) + 32 + e
        stores: 12
    """
    row = tl.program_id(0)
    wide = row.to(tl.int64)
    c = tl.arange(0, CHUNKS)
    c_live = c < chunks
    tops = tl.load(top_ptr + wide * chunks + c, mask=c_live, other=float("-inf"))
    top = tl.max(tops, 0)
    low = tl.min(tl.load(low_ptr + wide * chunks + c, mask=c_live, other=float("inf")), 0)
    best = tl.load(top_token_ptr + wide * chunks + c, mask=c_live & (tops == top), other=vocab)
    chosen = tl.min(best, 0)
    finite = (top < float("inf")) & (low > float("-inf"))
    tl.store(finite_ptr + row, finite.to(tl.int32))
    if not finite:
        tl.store(token_ptr + row, 0)
        tl.store(logprob_ptr + row, float("nan"))
        return

    top_k = tl.load(top_k_ptr + row)
    if (tl.load(temperature_ptr + row) > 0.0) & (top_k != 1):
        z_row = z_ptr + wide * vocab
        w_row = w_ptr + wide * vocab
        high_key = key_of(top)
        low_key = key_of(low)
        floor = low_key
        if (top_k > 0) & (top_k < vocab):
            floor = reach(z_row, w_row, vocab, low_key, high_key, low_key, top_k, True, C)
        top_p = tl.load(top_p_ptr + row)
        if top_p < 1.0:
            mass = tl.full([], 0.0, tl.float64)
            for first in range(0, vocab, C):
                token = first + tl.arange(0, C)
                live = token < vocab
                key = key_of(tl.load(z_row + token, mask=live, other=float("-inf")))  # wide
                weight = tl.load(w_row + token, mask=live, other=0.0)  # wide
                mass += tl.sum(tl.where(key >= floor, weight, 0.0), 0)
            target = top_p.to(tl.float64) * mass
            floor = reach(z_row, w_row, vocab, floor, high_key, floor, target, False, C)

        min_p = tl.load(min_p_ptr + row).to(tl.float64)
        sums = tl.zeros([CHUNKS], tl.float64)
        for i in range(chunks):
            token = i * C + tl.arange(0, C)
            live = token < vocab
            key = key_of(tl.load(z_row + token, mask=live, other=float("-inf")))  # wide
            weight = tl.load(w_row + token, mask=live, other=0.0)  # wide
            kept = tl.where((key >= floor) & (weight >= min_p), weight, 0.0)
            sums = tl.where(c == i, tl.sum(kept, 0), sums)
        ends = tl.cumsum(sums, 0)
        u = uniform(tl.load(seed_ptr + row), tl.load(counter_ptr + row))
        target = u * tl.sum(sums, 0)
        # the chunk where it falls; should rounding put the target past the end, the last that weighs anything
        past = (ends > target) & (sums > 0.0)
        last = tl.max(tl.where(sums > 0.0, c, 0), 0)
        where = tl.minimum(tl.min(tl.where(past, c, CHUNKS), 0), last)
        before = tl.sum(tl.where(c < where, sums, 0.0), 0)
        token = where * C + tl.arange(0, C)
        live = token < vocab
        key = key_of(tl.load(z_row + token, mask=live, other=float("-inf")))  # wide
        weight = tl.load(w_row + token, mask=live, other=0.0)  # wide
        kept = tl.where((key >= floor) & (weight >= min_p), weight, 0.0)
        here = (before + tl.cumsum(kept, 0) > target) & (kept > 0.0)
        last_token = tl.max(tl.where(kept > 0.0, token, 0), 0)
        chosen = tl.minimum(tl.min(tl.where(here, token, vocab), 0), last_token)

    raw_tops = tl.load(raw_top_ptr + wide * chunks + c, mask=c_live, other=float("-inf"))
    raw_sums = tl.load(raw_sum_ptr + wide * chunks + c, mask=c_live, other=0.0)
    raw_top = tl.max(raw_tops, 0)
    total = raw_top + tl.log(tl.sum(raw_sums * tl.exp(raw_tops - raw_top), 0))
    raw = tl.load(logits_ptr + wide * logits_stride + chosen).to(tl.float32)
    tl.store(token_ptr + row, chosen)
    tl.store(logprob_ptr + row, raw - total)


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


def adjust_constants(chunk: int) -> dict[str, Any]:
    """The compile-time arguments and build options of `adjust_kernel`."""
    return {"C": chunk, "num_warps": 8, "num_stages": 1, "enable_fp_fusion": True}


def weigh_constants(chunk: int, chunks: int) -> dict[str, Any]:
    """The compile-time arguments and build options of `weigh_kernel`."""
    return {**adjust_constants(chunk), "CHUNKS": next_power_of_two(chunks)}


def draw_constants(chunk: int, chunks: int) -> dict[str, Any]:
    """The compile-time arguments and build options of `draw_kernel`: one program a row, so a large one."""
    return {**weigh_constants(chunk, chunks), "num_warps": 8}


def top_logprobs(logits: torch.Tensor, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(token ids int64 [n, num], log-probabilities fp32 [n, num]) of the most probable tokens under the model's own logits."""
    values, tokens = logits.float().topk(num, dim=-1)
    return tokens, values - logits.float().logsumexp(-1, keepdim=True)
