"""Which tile sizes a launch uses. Knows shapes, dtypes and what the offline compiler proved; knows no lengths."""

from typing import NamedTuple

DECODE_M = 16
"""Fewest rows that a tensor-core product takes."""


class Tile(NamedTuple):
    """Rows and keys of a tile, and how a program is built. M = rows: query tokens times the heads of one KV head."""

    m: int
    n: int
    warps: int
    stages: int


def next_power_of_two(x: int) -> int:
    """The least power of two that is at least `x` (1 or more)."""
    return 1 << (x - 1).bit_length()


def decode_tile(head_dim: int, group: int, element_bytes: int, kv_bytes: int) -> Tile:
    """The tile for sequences with few queries: as few rows as hold one token's group, many keys in flight."""
    m = max(DECODE_M, next_power_of_two(group))
    if element_bytes == 4:
        return Tile(m, 32, 4, 2)
    return Tile(m, 64 if head_dim <= 128 else 32, 4, 3)


def prefill_tile(head_dim: int, group: int, element_bytes: int, kv_bytes: int) -> Tile:
    """The tile for chunks of a prompt: many rows share each key that is read."""
    if element_bytes == 4:
        return Tile(max(32, next_power_of_two(group)), 32, 4, 2)
    if head_dim <= 128:
        return Tile(128, 64, 8, 2)
    return Tile(64, 32, 8, 2)
