"""What a step computes, as records in memory: sequences, token rows and attention items, filled once and read by every layer.

All records are int64 words at fixed addresses, so that a program of operations can be built once and run for every step. One
sequence's new tokens are consecutive token rows. Knows no tensors of the model.
"""

import numba

from kernels.cpu.simd import load_i32, load_i64, store_i64

HEADER_WORDS, SEQUENCE_WORDS, TOKEN_WORDS, ITEM_WORDS = 16, 8, 4, 4
ROWS, SEQUENCES, SAMPLED, ITEMS = 0, 1, 2, 3
"""Words of the header: token rows, sequences, rows of the head product, attention items."""
KIND, KV_HEADS, GROUP, HEAD_DIM, BLOCK_SIZE = 8, 9, 10, 11, 12
"""More words of the header, the same in every step: the pool's format, and the shape of attention."""
TABLE, START, COUNT, FIRST, PARTIAL = 0, 1, 2, 3, 4
"""Words of a sequence: address of its int32 block table, first new position, new positions, first token row, first partial."""
TOKEN, POSITION, SLOT, SEQUENCE = 0, 1, 2, 3
"""Words of a token row."""
SPAN = 128
"""Keys in one softmax tile. Tiles start at multiples of it, so a row's arithmetic depends on its position alone."""
WHOLE = -1
"""An item's tile, where the item walks all tiles of its rows."""


@numba.njit(nogil=True)
def word(base, index):
    """int64 `index` of a record."""
    return load_i64(base + 8 * index)


@numba.njit(nogil=True)
def prepare(header, sequences, tokens, items, block_size, chunk):
    """Fills positions, slots and attention items from the sequences' words.

    A sequence with one new token gets an item a tile (its partial results are numbered from its PARTIAL word); one with more
    gets an item for each `chunk` tokens, last first, since later rows see more keys.
    """
    count = 0
    partial = 0
    for s in range(word(header, SEQUENCES)):
        record = sequences + 8 * SEQUENCE_WORDS * s
        table, start, new, first = (
            word(record, TABLE),
            word(record, START),
            word(record, COUNT),
            word(record, FIRST),
        )
        for i in range(new):
            position = start + i
            token = tokens + 8 * TOKEN_WORDS * (first + i)
            block = load_i32(table + 4 * (position // block_size))
            store_i64(token + 8 * POSITION, position)
            store_i64(token + 8 * SLOT, block * block_size + position % block_size)
            store_i64(token + 8 * SEQUENCE, s)
        store_i64(record + 8 * PARTIAL, partial)
        if new == 1:
            for tile in range((start + SPAN) // SPAN):
                count = _item(items, count, s, 0, 1, tile)
                partial += 1
        else:
            for offset in range((new - 1) // chunk * chunk, -1, -chunk):
                count = _item(items, count, s, offset, min(chunk, new - offset), WHOLE)
    store_i64(header + 8 * ITEMS, count)


@numba.njit(nogil=True)
def _item(items, count, sequence, offset, tokens, tile):
    record = items + 8 * ITEM_WORDS * count
    store_i64(record, sequence)
    store_i64(record + 8, offset)
    store_i64(record + 16, tokens)
    store_i64(record + 24, tile)
    return count + 1
