"""Where kernel tests run: on the GPU under `make gpu`, under Triton's interpreter otherwise."""

import torch

from kernels.mode import INTERPRETED

DEVICE = "cpu" if INTERPRETED else "cuda"


def ints(values: object, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """A tensor of integers on the device under test."""
    return torch.tensor(values, dtype=dtype, device=DEVICE)
