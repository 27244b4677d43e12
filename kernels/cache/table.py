"""The block table on the device: only entries that changed travel. Knows (row, column, block) triples; knows no sequences."""

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

ENTRIES = 128
"""Entries of one program."""


@triton.jit(do_not_specialize=["num"])
def delta_kernel(
    table_ptr,  # int32 [rows, max_blocks]
    delta_ptr,  # int32 [3, num]: rows, columns, blocks
    num,
    table_stride,
    E: tl.constexpr,
):
    """Writes E entries.

    Traffic of all programs together in bytes, whatever the table's size:

        loads: 12 * num
        stores: 4 * num
    """
    i = tl.program_id(0) * E + tl.arange(0, E)
    live = i < num
    row = tl.load(delta_ptr + i, mask=live, other=0)
    column = tl.load(delta_ptr + num + i, mask=live, other=0)
    block = tl.load(delta_ptr + 2 * num + i, mask=live, other=0)
    tl.store(table_ptr + row.to(tl.int64) * table_stride + column, block, mask=live)


DELTA_CONSTANTS = {"E": ENTRIES, "num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}


def last_changes(
    rows: NDArray[np.int32], columns: NDArray[np.int32], blocks: NDArray[np.int32]
) -> NDArray[np.int32]:
    """[3, num] with each entry once: where one is named several times its last value stays, as assignment in order would leave it."""
    delta = np.stack([rows, columns, blocks]).astype(np.int32)
    key = delta[0].astype(np.int64) << 32 | delta[1]
    _, last = np.unique(key[::-1], return_index=True)
    return np.ascontiguousarray(delta[:, len(key) - 1 - last])


def apply_delta(table: torch.Tensor, delta: torch.Tensor) -> None:
    """table[rows, columns] = blocks on the device, at a cost that depends on the number of changes alone.

    Args:
        table: int32 [rows, max_blocks], rows contiguous.
        delta: int32 [3, num] on the table's device, each entry once (`last_changes`).
    """
    num = delta.shape[1]
    if num == 0:
        return
    delta_kernel[(triton.cdiv(num, ENTRIES),)](
        table, delta, num, table.stride(0), **DELTA_CONSTANTS
    )
