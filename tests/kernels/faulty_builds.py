"""Run by the offline tests in a process of its own: judges builds with a planted fault each, and prints what was found as JSON."""

import json
import sys

from kernels import builds, offline
from kernels.attention import launch, rules
from kernels.attention.tiles import Tile
from kernels.machine_code import inspect


def with_tile(tile: Tile) -> builds.Build:
    """A prefill build with a tile of our choice."""
    plain = builds.attend("prefill", 90)
    constants = launch.constants(
        rules.causal(), tile, group=4, head_dim=128, block_size=16, dtype=builds.BF16, form="same", split=False, paged=True
    )  # fmt: skip
    return plain._replace(constants=constants)


def unaligned() -> builds.Build:
    """A decode build whose blocks may begin anywhere: the stride is not called one, so nothing is promised of it."""
    plain = builds.attend("decode", 90)
    return plain._replace(aligned=tuple(x for x in plain.aligned if x != "block_stride"))


if __name__ == "__main__":
    cases = {"huge tile": with_tile(Tile(128, 128, 4, 1)), "unaligned blocks": unaligned()}
    found = {k: offline.faults(b, inspect(offline.compile_build(b, 90))) for k, b in cases.items()}
    sys.stdout.write(json.dumps(found))
