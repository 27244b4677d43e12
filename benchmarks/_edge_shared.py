"""The file of 64-bit integers that the two processes of `benchmarks/gateway.py` share."""

from pathlib import Path
from typing import Final

import numpy as np

PACE: Final = 0
"""Place of the nanoseconds a step takes: 0 as fast as it goes, `HOLD` not at all."""
FIRST_DONE: Final = 1
"""From here on: when each step was complete, in nanoseconds of the monotonic clock that all processes of a machine share."""
NUM_STEPS: Final = 1 << 16
HOLD: Final = -1


def shared_file(path: Path) -> np.ndarray:
    """The shared integers; made where they are not there yet."""
    mode = "r+" if path.exists() else "w+"
    return np.memmap(path, np.int64, mode, shape=(FIRST_DONE + NUM_STEPS,))
