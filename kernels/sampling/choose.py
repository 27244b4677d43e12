"""Filters a row's tokens and draws one, steps 4 to 7 of `draw.py`. Knows weights and counters; knows no penalties."""

from typing import Any

import triton
import triton.language as tl

from kernels.sampling.order import key_of, reach
from kernels.sampling.philox import uniform
from kernels.sampling.weigh import weigh_constants


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
            floor = reach(z_row, w_row, vocab, low_key, high_key, top_k, True, C)
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
            floor = reach(z_row, w_row, vocab, floor, high_key, target, False, C)

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


def draw_constants(chunk: int, chunks: int) -> dict[str, Any]:
    """The compile-time arguments and build options of `draw_kernel`: one program a row, so a large one."""
    return {**weigh_constants(chunk, chunks), "num_warps": 8}
