"""What a checkpoint of any format offers to the converter. Knows formats by one protocol; knows no cache and no torch.

Tensor names are those of GGUF (`blk.0.attn_q.weight`), whatever the file calls them.
"""

from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.models.shape import ModelShape
from engine.weights.tokenizer_data import TokenizerData


class Blocks(Struct, frozen=True, eq=False):
    """A matrix in its file's quantised form."""

    kind: str
    """GGUF's name of the block type, such as `Q4_1`."""
    data: NDArray[np.uint8]
    """[rows, bytes of a row]"""


class Source(Protocol):
    """A checkpoint opened for conversion."""

    title: str
    """The model's name for people."""
    shape: ModelShape
    tokenizer: TokenizerData
    interleaved_rotary: bool
    """Rows of Q and K are ordered for pairs (2i, 2i + 1) and must be brought to (i, i + half)."""
    names: frozenset[str]
    """Every tensor in the file, under GGUF's names where it has one."""

    def called(self, name: str) -> str:
        """The file's own name of a tensor."""
        ...

    def size(self, name: str) -> tuple[int, ...]:
        """[rows, columns] or [elements] of a tensor."""
        ...

    def read(self, name: str) -> NDArray[np.float32]:
        """The tensor as float32, dequantised where needed."""
        ...

    def blocks(self, name: str) -> Blocks | None:
        """The tensor's quantised blocks where it is Q4_1 or Q8_0, else None."""
        ...
