"""The accelerator as the engine sees it, and how small arrays get to it. Knows devices and bytes; knows no model.

Under Triton's interpreter the CPU stands in for the accelerator: the same code, without streams, graphs and pinned memory.
"""

from collections.abc import Sequence

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from engine.core.errors import ConfigError
from kernels.mode import INTERPRETED

I32 = NDArray[np.int32]
_ALIGNED = 4
"""int32 in 16 bytes."""


class Accelerator(Struct, frozen=True):
    """Where kernels run. `capability`: 10 * major + minor; `multiprocessors`: what launches are spread over."""

    device: torch.device
    capability: int
    multiprocessors: int

    @property
    def is_cuda(self) -> bool:
        """Whether there are streams, graphs and pinned memory."""
        return self.device.type == "cuda"


def find_accelerator() -> Accelerator:
    """The current CUDA device, or the interpreter's stand-in where kernels are interpreted.

    Raises:
        ConfigError: there is no CUDA device.
    """
    if INTERPRETED:
        return Accelerator(torch.device("cpu"), 90, 2)
    if not torch.cuda.is_available():
        raise ConfigError("--device cuda was asked for, but torch finds no CUDA device")
    index = torch.cuda.current_device()
    facts = torch.cuda.get_device_properties(index)
    return Accelerator(
        torch.device("cuda", index), 10 * facts.major + facts.minor, facts.multi_processor_count
    )


class Packed:
    """int32 columns that travel to the device in one copy. `views`: each on the device, from a multiple of 16 bytes on.

    Invariant: between a `fill` and the next, the device has finished reading: steps end with a wait for their tokens.
    """

    def __init__(self, sizes: Sequence[int], accelerator: Accelerator) -> None:
        """`sizes`: elements of each column."""
        rooms = [-(-n // _ALIGNED) * _ALIGNED for n in sizes]
        ends = np.cumsum([0, *rooms]).tolist()
        self._host = torch.zeros(ends[-1], dtype=torch.int32, pin_memory=accelerator.is_cuda)
        self._device = torch.zeros(ends[-1], dtype=torch.int32, device=accelerator.device)
        slices = [slice(begin, begin + n) for begin, n in zip(ends, sizes, strict=False)]
        flat = self._host.numpy()
        self.host: list[I32] = [flat[s] for s in slices]
        """What is sent next."""
        self.views = [self._device[s] for s in slices]

    def send(self) -> None:
        """Copies `host` to `views`, in the order of the current stream."""
        self._device.copy_(self._host, non_blocking=True)

    @classmethod
    def of(cls, columns: Sequence[I32], accelerator: Accelerator) -> "Packed":
        """Columns of these sizes and contents, sent."""
        packed = cls([len(c) for c in columns], accelerator)
        for place, column in zip(packed.host, columns, strict=True):
            place[:] = column
        packed.send()
        return packed
