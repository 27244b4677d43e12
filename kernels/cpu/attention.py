"""Paged attention on a CPU: decode, chunked prefill and mixed batches in one traversal, with online softmax.

Keys are walked in tiles of `SPAN` positions. A tile gives each query row a partial result (maximum, sum, weighted values), and
partials merge in the order of their tiles, whether one thread walks them all (a prompt chunk) or each was a work item of its own
(a decode, so that one long sequence keeps every core busy). So a row's result has the same bits in every batch and chunking.

Query rows are packed: the heads that share a KV head lie together, [kv_head, token, head in group, head_dim], scaled and in the
pool's number format, and each vector of the cache is used by up to 8 rows. Knows no model and no scheduler.

Traffic: a decode reads its sequence's K and V once (4 * head_dim bytes a key and KV head in bf16); a chunk reads them once for
every `chunk_tokens(group)` tokens, mostly from the second-level cache.
"""

from typing import NamedTuple

import numba
import numpy as np

from kernels.cpu import simd
from kernels.cpu.attention_tiles import mix, score
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
    store_i64,
    storef,
)
from kernels.cpu.steps import (
    BLOCK_SIZE,
    COUNT,
    FIRST,
    GROUP,
    HEAD_DIM,
    ITEM_WORDS,
    ITEMS,
    KIND,
    KV_HEADS,
    PARTIAL,
    ROWS,
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
SUBTILES = SPAN // 8


class Shape(NamedTuple):
    """Sizes, and bytes between neighbours, of queries, pool and results."""

    kind: int
    kv_heads: int
    group: int
    head_dim: int
    block_size: int
    query_bytes: int
    """A row of queries."""
    subtile_bytes: int
    """8 positions of one head's K or V."""
    head_bytes: int
    """One head's K of a frame."""
    value_bytes: int
    """From a frame's K to its V."""
    result_bytes: int
    """A row of results, float32."""
    weight_bytes: int
    """A row of a tile's weights."""


class Space(NamedTuple):
    """Addresses in a thread's scratch."""

    keys: int
    """Subtiles of the tile at hand, `SUBTILES` addresses and one more."""
    values: int
    coming: int
    """K subtiles of the tile after it."""
    masked: int
    scores: int
    weights: int
    fresh: int
    """The tile's partial result, a row of values for each query row, and the maximum and sum of each."""
    fresh_peaks: int
    fresh_sums: int
    running: int
    """The merged result of the tiles so far."""
    peaks: int
    sums: int


def chunk_tokens(group: int) -> int:
    """Tokens of an item of a prompt chunk, at `group` query heads a KV head."""
    return max(1, QUERY_ROWS // group)


def scratch_bytes(group: int, head_dim: int) -> int:
    """What one thread needs; see `Space`."""
    rows: int = _most_rows.py_func(group)
    return 3 * 8 * (SUBTILES + 8) + 32 * head_dim + rows * (8 * SPAN + 8 * head_dim + 16)


def partial_bytes(group: int, head_dim: int) -> int:
    """Bytes of the partial result of one tile, one KV head."""
    return 4 * group * (head_dim + 2)


@numba.njit(nogil=True)
def _most_rows(group):
    """Rows that scratch has room for: those of an item, and spare ones to fill register tiles and vectors."""
    return (max(QUERY_ROWS, group) + 31) & -16


@numba.njit(nogil=True)
def _shape(header):
    kind, kv_heads, group = word(header, KIND), word(header, KV_HEADS), word(header, GROUP)
    head_dim, block_size = word(header, HEAD_DIM), word(header, BLOCK_SIZE)
    size = 2 if kind == 0 else 4
    head_bytes = block_size * head_dim * size
    return Shape(
        kind,
        kv_heads,
        group,
        head_dim,
        block_size,
        head_dim * size,
        8 * head_dim * size,
        head_bytes,
        kv_heads * head_bytes,
        4 * head_dim,
        SPAN * size,
    )


@numba.njit(nogil=True)
def _space(scratch, group, head_dim):
    rows = _most_rows(group)
    step = 8 * (SUBTILES + 8)
    masked = scratch + 3 * step
    scores = masked + 32 * head_dim
    weights = scores + rows * 4 * SPAN
    fresh = weights + rows * 4 * SPAN
    running = fresh + rows * 4 * head_dim
    state = running + rows * 4 * head_dim
    return Space(
        scratch,
        scratch + step,
        scratch + 2 * step,
        masked,
        scores,
        weights,
        fresh,
        state,
        state + 4 * rows,
        running,
        state + 8 * rows,
        state + 12 * rows,
    )


@numba.njit(nogil=True)
def _list_keys(shape, pool, table, head, tile, context, out):
    """Writes the addresses of a tile's K subtiles, the last one repeated to the end of the list; how many there are."""
    base = tile * SPAN
    count = (min(context - base, SPAN) + 7) >> 3
    inside = 0
    for j in range(count):
        place = base + 8 * j
        block = place // shape.block_size
        frame = pool + load_i32(table + 4 * block) * 2 * shape.value_bytes + head * shape.head_bytes
        inside = frame + ((place - block * shape.block_size) >> 3) * shape.subtile_bytes
        store_i64(out + 8 * j, inside)
    for j in range(count, SUBTILES + 1):
        store_i64(out + 8 * j, inside)
    return count


@numba.njit(nogil=True)
def _mask_tail(kind, values, valid, head_dim, out):
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
def _weigh(kind, scores, limit, vectors, weights):
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
def _merge(values, peak, weight, tile_values, tile_peak, tile_weight, head_dim):
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
def _merge_rows(space, rows, result_bytes):
    """`_merge` of all rows, with their maxima and sums 16 at a time: the same operations, so the same bits."""
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
def _normalise(values, weight, head_dim, out):
    """Writes values / weight; zeros where no key was seen."""
    factor = splatf(np.float32(1.0) / weight if weight != np.float32(0.0) else np.float32(0.0))
    for i in range(0, 4 * head_dim, 64):
        storef(out + i, mul(loadf(values + i), factor))


@numba.njit(nogil=True)
def _clear(values, num_bytes):
    for i in range(0, num_bytes, 64):
        storef(values + i, splatf(np.float32(0.0)))


@numba.njit(nogil=True)
def _take_rows(left):
    """Rows of the next register tile: what is left, in 8s while there are more than 4 (spare rows compute what nobody reads)."""
    return 8 if left > 4 else left


@numba.njit(nogil=True)
def _attend_tile(shape, space, count, query, rows, position, context, tile):
    """Partial results of packed query rows, of which the first is at `position`, over the listed tile, to `space.fresh`."""
    base = tile * SPAN
    for j in range(count):
        store_i64(space.values + 8 * j, word(space.keys, j) + shape.value_bytes)
    store_i64(space.values + 8 * count, word(space.values, count - 1))
    vectors = (count + 1) >> 1
    for v in range(vectors):
        r = 0
        while r < rows:
            some = _take_rows(rows - r)
            score(
                shape.kind,
                4 if shape.kind != 0 and some == 3 else some,
                word(space.keys, 2 * v),
                word(space.keys, 2 * v + 1),
                word(space.values, 2 * v),
                word(space.values, 2 * v + 1),
                query + r * shape.query_bytes,
                shape.query_bytes,
                shape.head_dim,
                space.scores + r * 4 * SPAN + 64 * v,
                4 * SPAN,
            )
            r += some
    for r in range(rows):
        limit = min(max(position + r // shape.group + 1 - base, 0), SPAN)
        peak, weight = _weigh(
            shape.kind,
            space.scores + r * 4 * SPAN,
            limit,
            vectors,
            space.weights + r * shape.weight_bytes,
        )
        store_f32(space.fresh_peaks + 4 * r, peak)
        store_f32(space.fresh_sums + 4 * r, weight)
    valid = (context - base) & 7
    if valid and count == (min(context - base, SPAN) + 7) >> 3 and context - base < SPAN:
        last = space.values + 8 * (count - 1)
        _mask_tail(shape.kind, word(last, 0), valid, shape.head_dim, space.masked)
        store_i64(last, space.masked)
    for i in range(0, shape.result_bytes, 64):
        r = 0
        while r < rows:
            some = _take_rows(rows - r)
            mix(
                shape.kind,
                4 if shape.kind != 0 and some == 3 else some,
                space.values,
                space.coming,
                count,
                i,
                shape.result_bytes,
                space.weights + r * shape.weight_bytes,
                shape.weight_bytes,
                space.fresh + r * shape.result_bytes + i,
                shape.result_bytes,
            )
            r += some


@numba.njit(nogil=True)
def _item(unit, kv_heads, sequences, items):
    """(record, sequence, head, context) of a unit of work: an item of one KV head."""
    number = unit // kv_heads
    item = items + 8 * ITEM_WORDS * number
    sequence = sequences + 8 * SEQUENCE_WORDS * word(item, 0)
    return (
        item,
        sequence,
        unit - number * kv_heads,
        word(sequence, START) + word(item, 1) + word(item, 2),
    )


@numba.njit(nogil=True)
def _list_first(shape, pool, unit, sequences, items, out):
    """Lists the K subtiles of a unit's first tile."""
    item, sequence, head, context = _item(unit, shape.kv_heads, sequences, items)
    _list_keys(shape, pool, word(sequence, TABLE), head, max(word(item, 3), 0), context, out)


@numba.njit(nogil=True)
def attend_part(counter, p, scratch):
    """Takes items, of one KV head each: rows of prompt chunks go to `out` finished, tiles of decodes to `partials`.

    Operands: header, sequence records, items, queries, pool, out (float32 rows), bytes between its rows, partials.
    """
    header, sequences, items, queries = word(p, 1), word(p, 2), word(p, 3), word(p, 4)
    pool, out, out_stride, partials = word(p, 5), word(p, 6), word(p, 7), word(p, 8)
    shape = _shape(header)
    space = _space(scratch, shape.group, shape.head_dim)
    units = word(header, ITEMS) * shape.kv_heads
    mine = 0
    unit = fetch_add(counter, 1)
    while unit < units:
        upcoming = fetch_add(counter, 1)
        item, sequence, head, context = _item(unit, shape.kv_heads, sequences, items)
        table, tokens, only = word(sequence, TABLE), word(item, 2), word(item, 3)
        position, row = context - tokens, word(sequence, FIRST) + word(item, 1)
        rows = tokens * shape.group
        query = queries + (head * word(header, ROWS) + row) * shape.group * shape.query_bytes
        if upcoming < units:
            _list_first(shape, pool, upcoming, sequences, items, space.coming)
        else:
            _list_first(shape, pool, unit, sequences, items, space.coming)
        if only != WHOLE:
            count = _list_keys(shape, pool, table, head, only, context, space.keys)
            number = (word(sequence, PARTIAL) + only) * shape.kv_heads + head
            target = partials + number * shape.group * (shape.result_bytes + 8)
            _attend_tile(shape, space, count, query, rows, position, context, only)
            for i in range(0, rows * shape.result_bytes, 64):
                storef(target + i, loadf(space.fresh + i))
            state = target + shape.group * shape.result_bytes
            for r in range(0, 4 * rows, 4):
                store_f32(state + 2 * r, load_f32(space.fresh_peaks + r))
                store_f32(state + 2 * r + 4, load_f32(space.fresh_sums + r))
        else:
            for r in range(0, 4 * rows, 64):
                storef(space.peaks + r, splatf(NOTHING))
                storef(space.sums + r, splatf(np.float32(0.0)))
            _clear(space.running, rows * shape.result_bytes)
            for tile in range((context + SPAN - 1) // SPAN):
                count = _list_keys(shape, pool, table, head, tile, context, space.keys)
                _attend_tile(shape, space, count, query, rows, position, context, tile)
                _merge_rows(space, rows, shape.result_bytes)
            for r in range(rows):
                token = r // shape.group
                place = (head * shape.group + r - token * shape.group) * shape.result_bytes
                _normalise(
                    space.running + r * shape.result_bytes,
                    load_f32(space.sums + 4 * r),
                    shape.head_dim,
                    out + (row + token) * out_stride + place,
                )
        mine += 1
        unit = upcoming
    return units, mine


@numba.njit(nogil=True)
def finish_row(row, header, sequences, tokens, out, out_stride, partials):
    """Merges the partial results of a decode's row into `out`, in the order of their tiles; other rows are finished already."""
    sequence = sequences + 8 * SEQUENCE_WORDS * word(tokens + 8 * TOKEN_WORDS * row, SEQUENCE)
    if word(sequence, COUNT) != 1:
        return
    kv_heads, group, head_dim = word(header, KV_HEADS), word(header, GROUP), word(header, HEAD_DIM)
    size = group * (4 * head_dim + 8)
    for head in range(kv_heads):
        first = partials + (word(sequence, PARTIAL) * kv_heads + head) * size
        for r in range(group):
            place = out + row * out_stride + (head * group + r) * 4 * head_dim
            _clear(place, 4 * head_dim)
            peak, weight = NOTHING, np.float32(0.0)
            for tile in range((word(sequence, START) + SPAN) // SPAN):
                partial = first + tile * kv_heads * size
                state = partial + group * 4 * head_dim + 8 * r
                values = partial + 4 * head_dim * r
                peak, weight = _merge(
                    place, peak, weight, values, load_f32(state), load_f32(state + 4), head_dim
                )
            _normalise(place, weight, head_dim, place)
