"""Matrix products of quantised activations with quantised weights: packing, work items, and what happens to a tile's outputs.

Work is claimed item by item from a counter that the team shares, so a core that is late takes less. An item is a few tiles of
outputs for at most `ROW_CHUNK` rows. Knows no layers and no models.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from kernels.cpu import simd
from kernels.cpu.panels import GROUP, RECORD, ROWS, quantise_group, swish_product
from kernels.cpu.shared import fetch_add
from kernels.cpu.simd import loadf, storef
from kernels.cpu.steps import word
from kernels.cpu.tiles import Q4_BYTES, Q4_EXTRA, Q8_BYTES, Q8_EXTRA, TILE, product

Bytes = NDArray[np.uint8]

Q4_1_BYTES, Q8_0_BYTES = 20, 34
"""Bytes of a raw block of 32 weights."""
ROW_CHUNK = 256
TILE_BYTES = 4 * TILE * ROWS
SCRATCH_BYTES = 4 * TILE_BYTES
"""What one thread needs for the tiles of an item."""


def _tiled(values: NDArray[np.generic], outputs: int, groups: int) -> NDArray[np.generic]:
    """[outputs, groups, ...] -> [tiles, groups, 16, ...]."""
    return values.reshape(outputs // TILE, TILE, groups, *values.shape[2:]).swapaxes(1, 2)


def _check(blocks: Bytes, size: int, name: str) -> tuple[int, int]:
    if blocks.ndim != 3 or blocks.shape[2] != size or blocks.dtype != np.uint8:
        raise ValueError(
            f"{name} blocks must be uint8 [outputs, groups, {size}], not {blocks.dtype} {list(blocks.shape)}"
        )
    if blocks.shape[0] % TILE:
        raise ValueError(
            f"{name} weights must have a multiple of {TILE} outputs, not {blocks.shape[0]}"
        )
    return blocks.shape[0], blocks.shape[1]


def pack(blocks: Bytes) -> tuple[Bytes, Bytes, int]:
    """Raw Q4_1 or Q8_0 blocks, told apart by their size, to (weights, extra, bits)."""
    if blocks.shape[-1] == Q4_1_BYTES:
        return *pack_q4(blocks), 4
    return *pack_q8(blocks), 8


def pack_q4(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """Q4_1 blocks as in GGUF, uint8 [outputs, groups, 20], to (weights, extra) in the order that tiles read.

    Raises:
        ValueError: the blocks have another shape, or outputs are not a multiple of 16.
    """
    outputs, groups = _check(blocks, Q4_1_BYTES, "Q4_1")
    nibbles = blocks[:, :, 4:]
    quants = np.concatenate([nibbles & 15, nibbles >> 4], axis=2).reshape(outputs, groups, 4, 2, 4)
    packed = quants[:, :, :, 0] | quants[:, :, :, 1] << 4
    weights = _tiled(packed, outputs, groups).swapaxes(2, 3)
    halves = _tiled(blocks[:, :, :4].reshape(outputs, groups, 2, 2), outputs, groups).swapaxes(2, 3)
    return np.ascontiguousarray(weights).reshape(-1), np.ascontiguousarray(halves).reshape(-1)


def pack_q8(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """Q8_0 blocks as in GGUF, uint8 [outputs, groups, 34], to (weights, extra) in the order that tiles read.

    Raises:
        ValueError: the blocks have another shape, or outputs are not a multiple of 16.
    """
    outputs, groups = _check(blocks, Q8_0_BYTES, "Q8_0")
    shifted = (blocks[:, :, 2:] ^ 128).reshape(outputs, groups, 8, 4)
    weights = _tiled(shifted, outputs, groups).swapaxes(2, 3)
    return np.ascontiguousarray(weights).reshape(-1), np.ascontiguousarray(
        _tiled(blocks[:, :, :2], outputs, groups)
    ).reshape(-1)


@numba.njit(nogil=True)
def _tile_rows(rows):
    """The tile for `rows` rows (1..8): spare rows compute what nobody reads."""
    return 8 if rows > 4 else (4 if rows > 2 else rows)


@numba.njit(nogil=True)
def _product(bits, rows, weights, extra, record, groups, out):
    """`tiles.product`, as one function for all callers."""
    product(bits, rows, weights, extra, record, groups, out)


def quantise_q8_0(values: NDArray[np.float32]) -> Bytes:
    """Float32 [outputs, inputs] as GGUF Q8_0 blocks uint8 [outputs, inputs / 32, 34]: scale = max|w| / 127, rounded to float16."""
    groups = values.reshape(len(values), -1, GROUP)
    scales = (np.abs(groups).max(axis=2, keepdims=True) / 127).astype(np.float16)
    steps = np.where(scales == 0, np.float32(1), scales.astype(np.float32))
    quants = np.clip(np.rint(groups / steps), -127, 127).astype(np.int8)
    return np.concatenate([scales.view(np.uint8), quants.view(np.uint8)], axis=2)


@numba.njit(nogil=True)
def _put(scratch, rows, bias, out, stride, accumulate):
    """Moves the valid rows of a tile, plus 16 of `bias`, to float32 rows `stride` bytes apart, or adds them there."""
    for r in range(rows):
        y = loadf(scratch + 4 * TILE * r)
        if bias:
            y = simd.add(y, loadf(bias))
        if accumulate:
            y = simd.add(y, loadf(out + stride * r))
        storef(out + stride * r, y)


@numba.njit(nogil=True)
def linear_part(counter, p, scratch):
    """Takes items of `out (+)= panel @ weights.T`.

    Operands: rows (address), panel, weights, extra, bits (4 or 8), groups, tiles of outputs, out, bytes between its rows,
    whether to add to what is there, bias (float32 [outputs]; 0: none).
    """
    rows, panel, weights, extra = word(word(p, 1), 0), word(p, 2), word(p, 3), word(p, 4)
    bits, groups, tiles = word(p, 5), word(p, 6), word(p, 7)
    out, stride, accumulate, bias = word(p, 8), word(p, 9), word(p, 10), word(p, 11)
    size, extra_size = (Q4_BYTES, Q4_EXTRA) if bits == 4 else (Q8_BYTES, Q8_EXTRA)
    take = 2 if rows <= ROWS else 1
    per_chunk = (tiles + take - 1) // take
    items = per_chunk * ((rows + ROW_CHUNK - 1) // ROW_CHUNK)
    mine = 0
    item = fetch_add(counter, 1)
    while item < items:
        chunk = item // per_chunk
        first = (item - chunk * per_chunk) * take
        for tile in range(first, min(first + take, tiles)):
            w, e = weights + tile * groups * size, extra + tile * groups * extra_size
            for row in range(chunk * ROW_CHUNK, min(chunk * ROW_CHUNK + ROW_CHUNK, rows), ROWS):
                some = min(ROWS, rows - row)
                record = panel + (row >> 3) * groups * RECORD
                _product(bits, _tile_rows(some), w, e, record, groups, scratch)
                column = 4 * TILE * tile
                here = bias + column if bias else 0
                _put(scratch, some, here, out + row * stride + column, stride, accumulate)
        mine += 1
        item = fetch_add(counter, 1)
    return items, mine


@numba.njit(nogil=True)
def gated_part(counter, p, scratch):
    """Takes items of `out = quantise(swish(gate) * up)`: their tiles lie in fours for each 32 outputs, 2 of gate and 2 of up.

    Operands: rows (address), panel, weights, extra, bits (4 or 8), groups, groups of out, out (a panel).
    """
    rows, panel, weights, extra = word(word(p, 1), 0), word(p, 2), word(p, 3), word(p, 4)
    bits, groups, out_groups, out = word(p, 5), word(p, 6), word(p, 7), word(p, 8)
    size, extra_size = (Q4_BYTES, Q4_EXTRA) if bits == 4 else (Q8_BYTES, Q8_EXTRA)
    items = out_groups * ((rows + ROW_CHUNK - 1) // ROW_CHUNK)
    mine = 0
    item = fetch_add(counter, 1)
    while item < items:
        chunk = item // out_groups
        group = item - chunk * out_groups
        for row in range(chunk * ROW_CHUNK, min(chunk * ROW_CHUNK + ROW_CHUNK, rows), ROWS):
            some = min(ROWS, rows - row)
            record = panel + (row >> 3) * groups * RECORD
            for t in range(4):
                first = (4 * group + t) * groups
                w, e = weights + first * size, extra + first * extra_size
                _product(bits, _tile_rows(some), w, e, record, groups, scratch + t * TILE_BYTES)
            target = out + ((row >> 3) * out_groups + group) * RECORD
            for r in range(some):
                gates, ups = scratch + 64 * r, scratch + 2 * TILE_BYTES + 64 * r
                low = swish_product(loadf(gates), loadf(ups))
                high = swish_product(loadf(gates + TILE_BYTES), loadf(ups + TILE_BYTES))
                quantise_group(low, high, target, r)
        mine += 1
        item = fetch_add(counter, 1)
    return items, mine


@numba.njit(nogil=True)
def embed_row(weights, extra, groups, token, out):
    """Widens row `token` of a packed Q8 table to `32 * groups` float32."""
    first, lane = (token >> 4) * groups, token & 15
    for g in range(groups):
        scale = simd.load_half(extra + (first + g) * Q8_EXTRA + 2 * lane)
        base = weights + (first + g) * Q8_BYTES + 4 * lane
        for k in range(GROUP):
            q = simd.load_u8(base + TILE * (k & -4) + (k & 3)) - 128
            simd.store_f32(out + 4 * (GROUP * g + k), scale * np.float32(q))
