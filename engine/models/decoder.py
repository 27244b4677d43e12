"""What the runner asks of a model. Knows a step's arrays; knows no family and no kernel."""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.models.step import Step


class Decoder(Protocol):
    """A model with its own paged pool."""

    @property
    def frames(self) -> NDArray[np.uint8]:
        """[parts, num_blocks, bytes], a view of the pool: each frame is `frames[:, i]`, opaque bytes.

        No parts where it is not host memory.
        """
        ...

    def forward(self, step: Step) -> torch.Tensor:
        """Logits [S, vocabulary] float32 of the step's sampled places.

        When it returns, keys and values of all T positions are in the pool. The result of a row depends on no other row
        beyond rounding: a row that is not finite leaves the others as they would be. Valid until the next call.
        """
        ...

    def close(self) -> None:
        """Frees threads and memory that would outlive the object; idempotent, and nothing is called after it."""
        ...
