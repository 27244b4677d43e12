"""Sizes that tiles may have: Triton's blocks are powers of two."""


def next_power_of_two(x: int) -> int:
    """The least power of two that is at least `x` (1 or more)."""
    return 1 << (x - 1).bit_length()
