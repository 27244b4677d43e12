"""Where kernel tests run: on the GPU under `make gpu`, under Triton's interpreter otherwise."""

from typing import Any

import torch
import triton
from triton.runtime import interpreter

from kernels.mode import INTERPRETED

DEVICE = "cpu" if INTERPRETED else "cuda"
if not INTERPRETED and not torch.cuda.is_available():
    raise RuntimeError(
        "kernels are not interpreted here (TRITON_INTERPRET is 0), and there is no GPU"
    )


def ints(values: object, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """A tensor of integers on the device under test."""
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def mend_loop_bounds() -> None:
    """Triton 3.6's interpreter makes integers of arrays with one element by `int`, which NumPy has come to refuse."""
    patch = interpreter._patch_lang_tensor

    def mended(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = mended


if triton.__version__.startswith("3.6."):
    mend_loop_bounds()
