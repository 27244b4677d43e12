"""Weighs a row's tokens by their probability, up to a factor, in float64. Knows temperatures; knows no filters."""

from typing import Any

import triton
import triton.language as tl

from kernels.sampling.adjust import adjust_constants
from kernels.tile_sizes import next_power_of_two


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


def weigh_constants(chunk: int, chunks: int) -> dict[str, Any]:
    """The compile-time arguments and build options of `weigh_kernel`."""
    return {**adjust_constants(chunk), "CHUNKS": next_power_of_two(chunks)}
