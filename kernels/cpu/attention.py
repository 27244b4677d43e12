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

from kernels.cpu.attention_scratch import SUBTILES, shape_of, space_of
from kernels.cpu.attention_tiles import mix, score
from kernels.cpu.shared import fetch_add
from kernels.cpu.simd import load_f32, load_i32, loadf, splatf, store_f32, store_i64, storef
from kernels.cpu.softmax import (
    NOTHING,
    clear,
    mask_tail,
    merge,
    merge_rows,
    normalise,
    weigh,
)
from kernels.cpu.steps import (
    COUNT,
    FIRST,
    GROUP,
    HEAD_DIM,
    ITEM_WORDS,
    ITEMS,
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
        peak, weight = weigh(
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
        mask_tail(shape.kind, word(last, 0), valid, shape.head_dim, space.masked)
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
    shape = shape_of(header)
    space = space_of(scratch, shape.group, shape.head_dim)
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
            clear(space.running, rows * shape.result_bytes)
            for tile in range((context + SPAN - 1) // SPAN):
                count = _list_keys(shape, pool, table, head, tile, context, space.keys)
                _attend_tile(shape, space, count, query, rows, position, context, tile)
                merge_rows(space, rows, shape.result_bytes)
            for r in range(rows):
                token = r // shape.group
                place = (head * shape.group + r - token * shape.group) * shape.result_bytes
                normalise(
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
            clear(place, 4 * head_dim)
            peak, weight = NOTHING, np.float32(0.0)
            for tile in range((word(sequence, START) + SPAN) // SPAN):
                partial = first + tile * kv_heads * size
                state = partial + group * 4 * head_dim + 8 * r
                values = partial + 4 * head_dim * r
                peak, weight = merge(
                    place, peak, weight, values, load_f32(state), load_f32(state + 4), head_dim
                )
            normalise(place, weight, head_dim, place)
