"""What reading KV blocks of a given size reaches, of the best size: a table, as kernels measured it. Knows no hardware and no model."""

import json
import math
import re
import tomllib
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct

from traces.checked import FileError, why_unread

_FIGURE = re.compile(r"decode_block_(\d+)_us")


class BlockTable(Struct, frozen=True):
    """Efficiency by block size; between sizes by the logarithm of the size, beyond them as at the nearest."""

    source: str
    efficiency: dict[int, float]

    def at(self, block_size: int) -> float:
        """Above 0, at most 1."""
        sizes = sorted(self.efficiency)
        for small, large in pairwise(sizes):
            if small <= block_size <= large:
                share = math.log(block_size / small) / math.log(large / small)
                return (1 - share) * self.efficiency[small] + share * self.efficiency[large]
        return self.efficiency[sizes[0] if block_size < sizes[0] else sizes[-1]]


def load_block_table(path: Path | None = None) -> BlockTable:
    """The built-in table; or that of the figures which `python -m kernels.bench --json` wrote to `path`.

    Raises:
        FileError: `path` cannot be read or holds no time of a block size.
    """
    if path is None:
        text = resources.files("sim").joinpath("blocks.toml").read_text(encoding="utf-8")
        data = tomllib.loads(text)
        return BlockTable(data["source"], {int(k): float(v) for k, v in data["efficiency"].items()})
    try:
        figures: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FileError(f"the block table {path} cannot be read: {why_unread(error)}") from None
    times = {}
    for name, value in figures.items() if isinstance(figures, dict) else ():
        match = _FIGURE.fullmatch(name)
        if match and isinstance(value, int | float) and math.isfinite(value) and value > 0:
            times[int(match[1])] = float(value)
    if not times:
        raise FileError(
            f"the block table {path} has no decode_block_N_us; write it on a GPU with "
            "python -m kernels.bench --json FILE"
        )
    best = min(times.values())
    return BlockTable(str(path.name), {size: best / time for size, time in times.items()})
