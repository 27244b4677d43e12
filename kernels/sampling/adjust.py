"""Changes a row's logits before the draw: penalties and bias, steps 1 to 3 of `draw.py`. Knows counts of tokens; knows no filters."""

from typing import Any

import triton
import triton.language as tl

IN_PROMPT = 1 << 30
"""Added to a token's count where the prompt holds it."""
ALL_COUNTS = tl.constexpr(IN_PROMPT - 1)


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


def adjust_constants(chunk: int) -> dict[str, Any]:
    """The compile-time arguments and build options of `adjust_kernel`."""
    return {"C": chunk, "num_warps": 8, "num_stages": 1, "enable_fp_fusion": True}
