"""One step's input as arrays: which tokens at which positions of which rows. Knows plans' columns; knows no model."""

from typing import Final

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from engine.core.plan import NO_ENTRIES

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

NO_CHANGES: Final = (NO_ENTRIES, NO_ENTRIES, NO_ENTRIES)


class Step(Struct, frozen=True, eq=False):
    """Positions to compute, flattened row after row. R rows, T positions; decodes before prompt chunks."""

    ids: torch.Tensor
    """[T] int64 token ids."""
    positions: I64
    """[T] place of each token in its sequence."""
    slots: I64
    """[T] slot mapping: where each token's keys and values go, block * block_size + offset."""
    rows: I32
    """[R] places in `tables`."""
    starts: I32
    """[R] first position."""
    counts: I32
    """[R] positions, at least 1."""
    offsets: I64
    """[R] where each row's positions begin in the flat arrays."""
    num_decodes: int
    """The first rows, each with one position whatever it is."""
    tables: I32
    """[rows, columns] block tables of all rows; entries past a row's last block are stale."""
    sampled: torch.Tensor
    """[S] int64 places in the flat arrays whose logits are wanted."""
    changes: tuple[I32, I32, I32] = NO_CHANGES
    """(rows, columns, blocks) of the entries of `tables` that changed since the step before, in order, for tables kept elsewhere."""


def slot_mapping(tables: I32, rows: NDArray[np.integer], positions: I64, block_size: int) -> I64:
    """[T] slots of positions: `rows` [T] names each position's row in `tables`."""
    blocks: I64 = tables[rows, positions // block_size].astype(np.int64)
    return blocks * block_size + positions % block_size
