"""The KV pool of a CPU: its layout, writing to it with rotary positions applied, and copying frames.

One layer's pool is [num_blocks, 2, kv_heads, block_size * head_dim] (0 is K, 1 is V). Inside a frame positions come in subtiles of 8,
which suit the vector unit whatever the block size:

    bf16 K: [block_size / 8, head_dim / 2, 8, 2]: a dot product takes pairs of channels of 8 positions at once
    bf16 V: [block_size / 2, head_dim, 2]:        a weighted sum takes pairs of positions of 16 channels at once
    f32 K:  [block_size / 8, head_dim, 8]
    f32 V:  [block_size, head_dim]

Frames are opaque to everybody else; copying or swapping one copies bytes. Knows no sequences: a slot is a position of the pool.
"""

import numba
import numpy as np

from kernels.cpu import simd
from kernels.cpu.shared import fetch_add
from kernels.cpu.simd import add, load_f32, loadf, mul, store_bf16, storef, sub
from kernels.cpu.steps import (
    BLOCK_SIZE,
    GROUP,
    HEAD_DIM,
    KIND,
    KV_HEADS,
    POSITION,
    ROWS,
    SLOT,
    TOKEN_WORDS,
    word,
)

BF16, FP32 = 0, 1
"""Codes of the pool's number formats."""
KINDS = {"bfloat16": BF16, "float32": FP32}
SUBTILE = 8
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
HEAD_SIZES = (64, 80, 96, 128, 256)


def element_bytes(kind: int) -> int:
    """Bytes of a number of the pool."""
    return 2 if kind == BF16 else 4


def frame_bytes(kind: int, kv_heads: int, block_size: int, head_dim: int) -> int:
    """Bytes of a frame of one layer, K and V."""
    return 2 * kv_heads * block_size * head_dim * element_bytes(kind)


@numba.njit(nogil=True)
def rotate(source, cosines, head_dim, scale, target):
    """Rotates a head of float32 by its position, times `scale`: halves [a, b] -> [a cos - b sin, b cos + a sin].

    `cosines` holds head_dim / 2 cosines, then as many sines. Source: Su et al. 2021, eq. 34, in the half-split order.
    """
    half = head_dim >> 1
    whole = half & -16
    factor = simd.splatf(scale)
    for i in range(0, whole, 16):
        x, y = loadf(source + 4 * i), loadf(source + 4 * (half + i))
        c, s = loadf(cosines + 4 * i), loadf(cosines + 4 * (half + i))
        storef(target + 4 * i, mul(sub(mul(x, c), mul(y, s)), factor))
        storef(target + 4 * (half + i), mul(add(mul(y, c), mul(x, s)), factor))
    for i in range(whole, half):
        a, b = simd.load_f32(source + 4 * i), simd.load_f32(source + 4 * (half + i))
        cosine, sine = simd.load_f32(cosines + 4 * i), simd.load_f32(cosines + 4 * (half + i))
        simd.store_f32(target + 4 * i, (a * cosine - b * sine) * scale)
        simd.store_f32(target + 4 * (half + i), (b * cosine + a * sine) * scale)


@numba.njit(nogil=True)
def narrow(source, count, target):
    """Rounds `count` float32 to bf16."""
    for i in range(0, count, 16):
        store_bf16(target + 2 * i, loadf(source + 4 * i))


@numba.njit(nogil=True)
def copy_floats(source, count, target):
    """Copies `count` float32."""
    for i in range(0, count, 16):
        storef(target + 4 * i, loadf(source + 4 * i))


@numba.njit(nogil=True)
def put_key(kind, key, offset, head_dim, frame, scratch):
    """Writes one position's K, `head_dim` float32, at `offset` of one head's part of a frame."""
    inside = offset & 7
    if kind == 0:
        subtile = frame + (offset >> 3) * 16 * head_dim
        narrow(key, head_dim, scratch)
        for i in range(head_dim // 2):
            simd.store_i32(subtile + 32 * i + 4 * inside, simd.load_i32(scratch + 4 * i))
    else:
        subtile = frame + (offset >> 3) * 32 * head_dim
        for i in range(head_dim):
            simd.store_f32(subtile + 32 * i + 4 * inside, simd.load_f32(key + 4 * i))


@numba.njit(nogil=True)
def put_value(kind, value, offset, head_dim, frame, scratch):
    """Writes one position's V, `head_dim` float32, at `offset` of one head's part of a frame."""
    if kind == 0:
        pair = frame + (offset >> 1) * 4 * head_dim + 2 * (offset & 1)
        narrow(value, head_dim, scratch)
        for i in range(head_dim):
            simd.store_i16(pair + 4 * i, simd.load_i16(scratch + 2 * i))
    else:
        copy_floats(value, head_dim, frame + 4 * head_dim * offset)


@numba.njit(nogil=True)
def put_part(counter, p, scratch):
    """Takes items, a token and a KV head each: rotates its queries and K, packs the queries, writes K and V at the token's slot.

    Operands: header, token records, qkv (float32 rows: all query heads, all K heads, all V heads), bytes between its rows, rotary (a
    row of head_dim / 2 cosines and as many sines for each position; 0 is no rotation), queries (packed, in the pool's format), pool,
    bits of the float32 that queries are multiplied by.
    """
    header, tokens, qkv, stride = word(p, 1), word(p, 2), word(p, 3), word(p, 4)
    rotary, queries, pool, scale = word(p, 5), word(p, 6), word(p, 7), load_f32(p + 64)
    kind, kv_heads, group = word(header, KIND), word(header, KV_HEADS), word(header, GROUP)
    head_dim, block_size, rows = (
        word(header, HEAD_DIM),
        word(header, BLOCK_SIZE),
        word(header, ROWS),
    )
    head_bytes, number = 4 * head_dim, 2 if kind == 0 else 4
    part = block_size * head_dim * number
    one = np.float32(1.0)
    mine = 0
    item = fetch_add(counter, 1)
    while item < rows * kv_heads:
        row = item // kv_heads
        head = item - row * kv_heads
        record = tokens + 8 * TOKEN_WORDS * row
        slot = word(record, SLOT)
        turn = rotary + word(record, POSITION) * head_bytes if rotary else 0
        source = qkv + row * stride
        for h in range(group):
            _turn(source + (head * group + h) * head_bytes, turn, head_dim, scale, scratch)
            place = queries + ((head * rows + row) * group + h) * head_dim * number
            if kind == 0:
                narrow(scratch, head_dim, place)
            else:
                copy_floats(scratch, head_dim, place)
        block = slot // block_size
        offset = slot - block * block_size
        frame = pool + (2 * kv_heads * block + head) * part
        _turn(source + (kv_heads * group + head) * head_bytes, turn, head_dim, one, scratch)
        put_key(kind, scratch, offset, head_dim, frame, scratch + head_bytes)
        value = source + (kv_heads * group + kv_heads + head) * head_bytes
        put_value(kind, value, offset, head_dim, frame + kv_heads * part, scratch)
        mine += 1
        item = fetch_add(counter, 1)
    return rows * kv_heads, mine


@numba.njit(nogil=True)
def _turn(source, turn, head_dim, scale, target):
    if turn:
        rotate(source, turn, head_dim, scale, target)
    else:
        factor = simd.splatf(scale)
        for i in range(0, 4 * head_dim, 64):
            storef(target + i, mul(loadf(source + i), factor))


@numba.njit(nogil=True)
def copy_part(counter, p):
    """Takes items, a layer and a pair each: copies frame `pairs[i][0]` over `pairs[i][1]`; no frame is a target twice, or both.

    Operands: pool, bytes of a frame, bytes of a layer, layers, pairs, how many.
    """
    pool, frame, layer_bytes, layers = word(p, 1), word(p, 2), word(p, 3), word(p, 4)
    pairs, count = word(p, 5), word(p, 6)
    mine = 0
    item = fetch_add(counter, 1)
    while item < layers * count:
        layer = item // count
        pair = pairs + 16 * (item - layer * count)
        base = pool + layer * layer_bytes
        source, target = base + word(pair, 0) * frame, base + word(pair, 1) * frame
        for i in range(0, frame, 64):
            simd.storei(target + i, simd.loadi(source + i))
        mine += 1
        item = fetch_add(counter, 1)
    return layers * count, mine
