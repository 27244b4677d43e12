"""How many KV blocks this machine has room for. Knows memory limits of a Linux process; knows no tensors."""

import os
from pathlib import Path
from typing import Final

from engine.core.errors import ConfigError

DEFAULT_SHARE: Final = 0.25
"""Share of the available memory that the pool takes unless told otherwise."""


def pool_blocks(
    block_bytes: int, block_size: int, *, limit_bytes: int | None, share: float, most_tokens: int
) -> int:
    """Blocks of `block_bytes` in `limit_bytes`, or else in `share` of the available memory; not more than `most_tokens` need.

    Raises:
        ConfigError: not even one block fits.
    """
    room = int(available_bytes() * share) if limit_bytes is None else limit_bytes
    blocks = min(room // block_bytes, -(-most_tokens // block_size))
    if blocks < 1:
        raise ConfigError(
            f"the KV pool has room for {room} bytes, but one block of {block_size} tokens takes {block_bytes}"
        )
    return blocks


def available_bytes() -> int:
    """Memory that this process can still take: what the machine has left, or its control group allows, if less."""
    free = _meminfo_available() or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    group = _group_available()
    return free if group is None else min(free, group)


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return kib[0] * 1024 if kib else None


def _group_available() -> int | None:
    """What the control group (version 2) leaves, or None where it sets no limit."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)
