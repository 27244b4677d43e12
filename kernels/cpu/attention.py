"""Paged attention on a CPU: decode, chunked prefill and mixed batches in one traversal, with online softmax.

Keys are walked in tiles of `SPAN` positions. A tile gives each query row a partial result (maximum, sum, weighted values), and
partials merge in the order of their tiles, whether one thread walks them all (a prompt chunk) or each was a work item of its own
(a decode, so that one long sequence keeps every core busy). So a row's result has the same bits in every batch and chunking.

Query rows are packed: the heads that share a KV head lie together, [kv_head, token, head in group, head_dim], scaled and in the
pool's number format, and each vector of the cache is used by up to 8 rows. Knows no model and no scheduler.

Traffic: a decode reads its sequence's K and V once (4 * head_dim bytes a key and KV head in bf16); a chunk reads them once for
every `chunk_tokens(group)` tokens, mostly from the second-level cache.
"""

import numba
import numpy as np

from kernels.cpu import simd
from kernels.cpu.attention_tiles import (
    mix_bf16_1,
    mix_bf16_2,
    mix_bf16_3,
    mix_bf16_4,
    mix_bf16_8,
    mix_f32_1,
    mix_f32_2,
    mix_f32_4,
    mix_f32_8,
    score_bf16_1,
    score_bf16_2,
    score_bf16_3,
    score_bf16_4,
    score_bf16_8,
    score_f32_1,
    score_f32_2,
    score_f32_4,
    score_f32_8,
)
from kernels.cpu.simd import (
    add,
    exp,
    fetch_add,
    fma,
    load_f32,
    load_i32,
    loadf,
    mul,
    splatf,
    store_f32,
    storef,
)
from kernels.cpu.steps import (
    COUNT,
    FIRST,
    ITEM_WORDS,
    ITEMS,
    PARTIAL,
    SEQUENCE,
    SEQUENCE_WORDS,
    SPAN,
    START,
    TABLE,
    TOKEN_WORDS,
    WHOLE,
    word,
)

QUERY_ROWS = 24
"""Query rows that an item of a prompt chunk packs, where the group is not larger still."""
NOTHING = np.float32(-1e30)
"""A maximum over no keys: finite, so that differences stay numbers."""


def chunk_tokens(group: int) -> int:
    """Tokens of an item of a prompt chunk, at `group` query heads a KV head."""
    return max(1, QUERY_ROWS // group)


def scratch_bytes(group: int, head_dim: int) -> int:
    """What one thread needs: addresses, a masked subtile, scores, weights, two results and their maxima and sums."""
    rows = max(QUERY_ROWS, group) + 8
    return 8 * 64 + 32 * head_dim + rows * (8 * SPAN + 8 * head_dim + 16) + 64


def partial_bytes(group: int, head_dim: int) -> int:
    """Bytes of the partial result of one tile, one KV head."""
    return 4 * group * (head_dim + 2)


@numba.njit(nogil=True)
def _score(kind, rows, low, high, queries, stride, steps, out, out_stride):
    if kind == 0:
        if rows == 8:
            score_bf16_8(low, high, queries, stride, steps, out, out_stride)
        elif rows == 4:
            score_bf16_4(low, high, queries, stride, steps, out, out_stride)
        elif rows == 3:
            score_bf16_3(low, high, queries, stride, steps, out, out_stride)
        elif rows == 2:
            score_bf16_2(low, high, queries, stride, steps, out, out_stride)
        else:
            score_bf16_1(low, high, queries, stride, steps, out, out_stride)
    elif rows == 8:
        score_f32_8(low, high, queries, stride, steps, out, out_stride)
    elif rows >= 3:
        score_f32_4(low, high, queries, stride, steps, out, out_stride)
    elif rows == 2:
        score_f32_2(low, high, queries, stride, steps, out, out_stride)
    else:
        score_f32_1(low, high, queries, stride, steps, out, out_stride)


@numba.njit(nogil=True)
def _mix(kind, rows, subtiles, count, byte, row_bytes, weights, stride, out, out_stride):
    if kind == 0:
        if rows == 8:
            mix_bf16_8(subtiles, count, byte, row_bytes, weights, stride, out, out_stride)
        elif rows == 4:
            mix_bf16_4(subtiles, count, byte, row_bytes, weights, stride, out, out_stride)
        elif rows == 3:
            mix_bf16_3(subtiles, count, byte, row_bytes, weights, stride, out, out_stride)
        elif rows == 2:
            mix_bf16_2(subtiles, count, byte, row_bytes, weights, stride, out, out_stride)
        else:
            mix_bf16_1(subtiles, count, byte, row_bytes, weights, stride, out, out_stride)
    elif rows == 8:
        mix_f32_8(subtiles, count, byte, row_bytes, weights, stride, out, out_stride)
    elif rows >= 3:
        mix_f32_4(subtiles, count, byte, row_bytes, weights, stride, out, out_stride)
    elif rows == 2:
        mix_f32_2(subtiles, count, byte, row_bytes, weights, stride, out, out_stride)
    else:
        mix_f32_1(subtiles, count, byte, row_bytes, weights, stride, out, out_stride)


@numba.njit(nogil=True)
def _take(rows):
    """Rows of the next register tile."""
    if rows > 4:
        return 8
    return rows


@numba.njit(nogil=True)
def _mask_tail(kind, values, valid, head_dim, out):
    """Copies a V subtile, zeroing positions from `valid` (1..7) on: a weight of 0 must not meet a stale not-a-number."""
    for v in range(4 if kind == 0 else 8):
        keep = np.int64(-1)
        if kind == 0:
            keep = (
                np.int64(0)
                if valid <= 2 * v
                else (np.int64(0xFFFF) if valid == 2 * v + 1 else np.int64(-1))
            )
        elif valid <= v:
            keep = np.int64(0)
        mask = simd.splati(keep)
        for i in range(0, 4 * head_dim, 64):
            place = 4 * head_dim * v + i
            simd.storei(out + place, simd.iand(simd.loadi(values + place), mask))


@numba.njit(nogil=True)
def _weigh(kind, scores, limit, vectors, weights):
    """Softmax of one row over a tile: writes exp(score - max) of keys before `limit`, 0 of the others; (maximum, sum)."""
    top = splatf(NOTHING)
    bound = simd.splati(limit)
    for v in range(vectors):
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
            simd.store_words(weights + 32 * v, simd.to_bf16(p))
        else:
            storef(weights + 64 * v, p)
    return peak, simd.total(sums)


@numba.njit(nogil=True)
def _exp(x):
    return simd.largest(exp(splatf(x)))


@numba.njit(nogil=True)
def _merge(peak, weight, values, tile_peak, tile_weight, tile_values, head_dim):
    """Merges a tile's partial result into a running one, in place; the new (maximum, sum)."""
    top = max(peak, tile_peak)
    keep, join = _exp(peak - top), _exp(tile_peak - top)
    a, b = splatf(keep), splatf(join)
    for i in range(0, 4 * head_dim, 64):
        storef(values + i, fma(loadf(tile_values + i), b, mul(loadf(values + i), a)))
    return top, weight * keep + tile_weight * join


@numba.njit(nogil=True)
def _normalise(values, weight, head_dim, out):
    """Writes values / weight; zeros where no key was seen."""
    factor = splatf(np.float32(1.0) / weight if weight != np.float32(0.0) else np.float32(0.0))
    for i in range(0, 4 * head_dim, 64):
        storef(out + i, mul(loadf(values + i), factor))


@numba.njit(nogil=True)
def attend_part(
    counter,
    header,
    sequences,
    items,
    queries,
    pool,
    kind,
    kv_heads,
    group,
    head_dim,
    block_size,
    out,
    out_stride,
    partials,
    scratch,
):
    """Takes items until none is left: rows of prompt chunks go to `out` finished, tiles of decodes to `partials`."""
    size = 2 if kind == 0 else 4
    steps = head_dim >> 1 if kind == 0 else head_dim
    query_bytes = head_dim * size
    head_bytes = block_size * head_dim * size
    value_bytes = kv_heads * head_bytes
    frame_bytes = 2 * value_bytes
    subtile_bytes = 8 * head_dim * size
    result_bytes = 4 * head_dim
    total_rows = word(header, 0)
    most = max(QUERY_ROWS, group) + 8
    keys, values = scratch, scratch + 256
    masked = scratch + 512
    scores = masked + 32 * head_dim
    weights = scores + most * 4 * SPAN
    fresh = weights + most * 4 * SPAN
    running = fresh + most * result_bytes
    state = running + most * result_bytes
    units = word(header, ITEMS) * kv_heads
    unit = fetch_add(counter, 1)
    while unit < units:
        number = unit // kv_heads
        head = unit - number * kv_heads
        item = items + 8 * ITEM_WORDS * number
        sequence = sequences + 8 * SEQUENCE_WORDS * word(item, 0)
        offset, tokens, only = word(item, 1), word(item, 2), word(item, 3)
        table, position, row = (
            word(sequence, TABLE),
            word(sequence, START) + offset,
            word(sequence, FIRST) + offset,
        )
        rows = tokens * group
        query = queries + ((head * total_rows + row) * group) * query_bytes
        context = position + tokens
        first_tile = only if only != WHOLE else 0
        last_tile = only + 1 if only != WHOLE else (context + SPAN - 1) // SPAN
        if only == WHOLE:
            for r in range(rows):
                store_f32(state + 8 * r, NOTHING)
                store_f32(state + 8 * r + 4, np.float32(0.0))
                for i in range(0, result_bytes, 64):
                    storef(running + r * result_bytes + i, splatf(np.float32(0.0)))
        for tile in range(first_tile, last_tile):
            base = tile * SPAN
            visible = min(context - base, SPAN)
            subtiles = (visible + 7) >> 3
            vectors = (subtiles + 1) >> 1
            for j in range(subtiles):
                place = base + 8 * j
                logical = place // block_size
                frame = pool + load_i32(table + 4 * logical) * frame_bytes + head * head_bytes
                inside = frame + ((place - logical * block_size) >> 3) * subtile_bytes
                simd.store_i64(keys + 8 * j, inside)
                simd.store_i64(values + 8 * j, inside + value_bytes)
            simd.store_i64(keys + 8 * subtiles, word(keys, subtiles - 1))
            if visible & 7:
                _mask_tail(kind, word(values, subtiles - 1), visible & 7, head_dim, masked)
                simd.store_i64(values + 8 * (subtiles - 1), masked)
            for v in range(vectors):
                r = 0
                while r < rows:
                    some = _take(rows - r)
                    _score(
                        kind,
                        some,
                        word(keys, 2 * v),
                        word(keys, 2 * v + 1),
                        query + r * query_bytes,
                        query_bytes,
                        steps,
                        scores + r * 4 * SPAN + 64 * v,
                        4 * SPAN,
                    )
                    r += some
            for r in range(rows):
                limit = min(max(position + r // group + 1 - base, 0), SPAN)
                peak, weight = _weigh(
                    kind, scores + r * 4 * SPAN, limit, vectors, weights + r * size * SPAN
                )
                store_f32(state + 8 * (most + r), peak)
                store_f32(state + 8 * (most + r) + 4, weight)
            target = fresh
            if only != WHOLE:
                target = partials + ((word(sequence, PARTIAL) + tile) * kv_heads + head) * group * (
                    result_bytes + 8
                )
            for i in range(0, result_bytes, 64):
                r = 0
                while r < rows:
                    some = _take(rows - r)
                    _mix(
                        kind,
                        some,
                        values,
                        subtiles,
                        i,
                        result_bytes,
                        weights + r * size * SPAN,
                        size * SPAN,
                        fresh + r * result_bytes + i,
                        result_bytes,
                    )
                    r += some
            for r in range(rows):
                peak, weight = (
                    load_f32(state + 8 * (most + r)),
                    load_f32(state + 8 * (most + r) + 4),
                )
                if only != WHOLE:
                    for i in range(0, result_bytes, 64):
                        storef(target + r * result_bytes + i, loadf(fresh + r * result_bytes + i))
                    store_f32(target + group * result_bytes + 8 * r, peak)
                    store_f32(target + group * result_bytes + 8 * r + 4, weight)
                else:
                    peak, weight = _merge(
                        load_f32(state + 8 * r),
                        load_f32(state + 8 * r + 4),
                        running + r * result_bytes,
                        peak,
                        weight,
                        fresh + r * result_bytes,
                        head_dim,
                    )
                    store_f32(state + 8 * r, peak)
                    store_f32(state + 8 * r + 4, weight)
        if only == WHOLE:
            for r in range(rows):
                token = r // group
                place = (
                    out
                    + (row + token) * out_stride
                    + (head * group + r - token * group) * result_bytes
                )
                _normalise(running + r * result_bytes, load_f32(state + 8 * r + 4), head_dim, place)
        unit = fetch_add(counter, 1)


@numba.njit(nogil=True)
def finish_row(row, sequences, tokens, kv_heads, group, head_dim, out, out_stride, partials):
    """Merges the partial results of a decode's row into `out`, in the order of their tiles; other rows are finished already."""
    sequence = sequences + 8 * SEQUENCE_WORDS * word(tokens + 8 * TOKEN_WORDS * row, SEQUENCE)
    if word(sequence, COUNT) != 1:
        return
    tiles = (word(sequence, START) + SPAN) // SPAN
    result_bytes = 4 * head_dim
    step = kv_heads * group * (result_bytes + 8)
    for head in range(kv_heads):
        base = partials + (word(sequence, PARTIAL) * kv_heads + head) * group * (result_bytes + 8)
        for r in range(group):
            place = out + row * out_stride + (head * group + r) * result_bytes
            for i in range(0, result_bytes, 64):
                storef(place + i, splatf(np.float32(0.0)))
            peak, weight = NOTHING, np.float32(0.0)
            for tile in range(tiles):
                partial = base + tile * step
                state = partial + group * result_bytes + 8 * r
                peak, weight = _merge(
                    peak,
                    weight,
                    place,
                    load_f32(state),
                    load_f32(state + 4),
                    partial + r * result_bytes,
                    head_dim,
                )
            _normalise(place, weight, head_dim, place)
