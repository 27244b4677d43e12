"""Softmax of attention by parts: weights of one tile of keys, and how partial results merge. Knows rows; knows no blocks.

A partial result is a row's maximum, its sum of exponentials, and values weighted by them.
"""

import numba
import numpy as np

from kernels.cpu import simd
from kernels.cpu.simd import add, exp, fma, loadf, mul, splatf, storef

NOTHING = np.float32(-1e30)
"""A maximum over no keys: finite, so that differences stay numbers."""


@numba.njit(nogil=True)
def mask_tail(kind, values, valid, head_dim, out):
    """Copies a V subtile, zeroing positions from `valid` (1..7) on: a weight of 0 must not meet a stale not-a-number."""
    for v in range(4 if kind == 0 else 8):
        last = 2 * v + 1 if kind == 0 else v
        keep = -1 if last < valid else 0
        if kind == 0 and last == valid:
            keep = 0xFFFF
        mask = simd.splati(keep)
        for i in range(0, 4 * head_dim, 64):
            place = 4 * head_dim * v + i
            simd.storei(out + place, simd.iand(simd.loadi(values + place), mask))


@numba.njit(nogil=True)
def weigh(kind, scores, limit, vectors, weights):
    """Softmax of one row over a tile: writes exp(score - max) of keys before `limit`, 0 of the others; (maximum, sum)."""
    top = splatf(NOTHING)
    bound = simd.splati(limit)
    for v in range(limit >> 4):
        top = simd.maximum(loadf(scores + 64 * v), top)
    for v in range(limit >> 4, vectors):
        index = simd.iadd(simd.iota(), simd.splati(16 * v))
        s = simd.where_less(index, bound, loadf(scores + 64 * v), splatf(np.float32(-np.inf)))
        storef(scores + 64 * v, s)
        top = simd.maximum(s, top)
    peak = simd.largest(top)
    shift = splatf(peak)
    sums = splatf(np.float32(0.0))
    for v in range(vectors):
        p = exp(simd.sub(loadf(scores + 64 * v), shift))
        sums = add(sums, p)
        if kind == 0:
            simd.store_bf16(weights + 32 * v, p)
        else:
            storef(weights + 64 * v, p)
    return peak, simd.total(sums)


@numba.njit(nogil=True)
def merge(values, peak, weight, tile_values, tile_peak, tile_weight, head_dim):
    """Merges one row's partial result of a tile into a running one, in place; the new (maximum, sum).

    Source: Milakov and Gimelshein 2018, section 3.1.
    """
    a, b = splatf(peak), splatf(tile_peak)
    top = simd.maximum(a, b)
    keep, join = exp(simd.sub(a, top)), exp(simd.sub(b, top))
    for i in range(0, 4 * head_dim, 64):
        storef(values + i, fma(loadf(tile_values + i), join, mul(loadf(values + i), keep)))
    total = add(mul(splatf(weight), keep), mul(splatf(tile_weight), join))
    return simd.first(top), simd.first(total)


@numba.njit(nogil=True)
def merge_rows(space, rows, result_bytes):
    """`merge` of all rows, with their maxima and sums 16 at a time: the same operations, so the same bits."""
    for r in range(0, 4 * rows, 64):
        a, b = loadf(space.peaks + r), loadf(space.fresh_peaks + r)
        top = simd.maximum(a, b)
        keep, join = exp(simd.sub(a, top)), exp(simd.sub(b, top))
        total = add(mul(loadf(space.sums + r), keep), mul(loadf(space.fresh_sums + r), join))
        storef(space.peaks + r, top)
        storef(space.sums + r, total)
        storef(space.fresh_peaks + r, keep)
        storef(space.fresh_sums + r, join)
    for r in range(rows):
        keep, join = simd.bcastf(space.fresh_peaks + 4 * r), simd.bcastf(space.fresh_sums + 4 * r)
        base = r * result_bytes
        for i in range(base, base + result_bytes, 64):
            merged = fma(loadf(space.fresh + i), join, mul(loadf(space.running + i), keep))
            storef(space.running + i, merged)


@numba.njit(nogil=True)
def normalise(values, weight, head_dim, out):
    """Writes values / weight; zeros where no key was seen."""
    factor = splatf(np.float32(1.0) / weight if weight != np.float32(0.0) else np.float32(0.0))
    for i in range(0, 4 * head_dim, 64):
        storef(out + i, mul(loadf(values + i), factor))


@numba.njit(nogil=True)
def clear(values, num_bytes):
    """Writes zeros, `num_bytes` a multiple of 64."""
    for i in range(0, num_bytes, 64):
        storef(values + i, splatf(np.float32(0.0)))
