"""Which tile sizes a launch uses. Knows shapes, dtypes and what the offline compiler proved; knows no lengths."""

from typing import NamedTuple

from kernels.tile_sizes import next_power_of_two

DECODE_M = 16
"""Fewest rows that a tensor-core product takes."""


class Tile(NamedTuple):
    """Rows and keys of a tile, and how a program is built. M = rows: query tokens times the heads of one KV head."""

    m: int
    n: int
    warps: int
    stages: int


def decode_tile(head_dim: int, group: int, element_bytes: int, kv_bytes: int) -> Tile:
    """The tile for sequences with few queries: as few rows as hold one token's group, many keys in flight."""
    m = max(DECODE_M, next_power_of_two(group))
    if element_bytes == 4:
        return Tile(m, 32, 4 if head_dim <= 128 else 8, 2)
    if head_dim > 128:
        return Tile(m, 32, 4, 3)
    # one-byte keys are widened in registers: twice the threads share them
    return Tile(m, 64, 4 if kv_bytes > 1 else 8, 3)


def prefill_tile(
    head_dim: int, group: int, element_bytes: int, kv_bytes: int, capability: int
) -> Tile:
    """The tile for chunks of a prompt: many rows share each key that is read. fp32 has no registers for more than decodes' rows."""
    if element_bytes == 4:
        return decode_tile(head_dim, group, element_bytes, kv_bytes)
    if head_dim > 128:
        return Tile(64, 32, 8, 2)
    # sm_80 widens e4m3 by hand, which takes the registers of half the keys
    by_hand = kv_bytes == 1 and capability < 89
    return Tile(128, 32 if by_hand and head_dim > 64 else 64, 8, 2)
