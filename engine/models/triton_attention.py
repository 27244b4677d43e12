"""Attention, cache writes and block tables on an accelerator, by the Triton kernels. Knows steps and the pool; knows no layers' weights.

The pool is [layers, 2, blocks, KV heads, block_size, head_size] on the device. So is the block table, of which only changed entries
travel. A step is `apply`ed (table changes), then its arrays are sent, once for all layers.
"""

from collections.abc import Sequence

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from engine.core.errors import ConfigError
from engine.models.device import Accelerator, Packed
from engine.models.rotary import Rotary
from engine.models.shape import ModelShape
from engine.models.step import Step
from kernels.attention import rules
from kernels.attention.launch import Batch, Placed, attend, place
from kernels.attention.schedule import schedule
from kernels.attention.tiles import Tile, decode_tile, prefill_tile
from kernels.cache.table import apply_delta, last_changes
from kernels.cache.write import write_kv
from kernels.layout import BLOCK_SIZES, HEAD_DIMS, KVCache

I32 = NDArray[np.int32]


class SentStep(Struct, frozen=True, eq=False):
    """A step's arrays on the device, int32. T tokens, S sampled places."""

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    sampled: torch.Tensor
    batch: Batch
    launches: Sequence[Placed]


class TritonAttention:
    """Implements `engine.models.attention.AttentionBackend` for one model's layers."""

    def __init__(
        self,
        shape: ModelShape,
        rotary: Rotary,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        accelerator: Accelerator,
    ) -> None:
        """Takes the pool's memory.

        Raises:
            ConfigError: the kernels have no build for this head size or block size.
        """
        if shape.head_size not in HEAD_DIMS:
            raise ConfigError(
                f"heads of {shape.head_size} elements: the GPU kernels take {HEAD_DIMS}"
            )
        if block_size not in BLOCK_SIZES:
            raise ConfigError(
                f"block_size is {block_size}: the GPU kernels take one of {BLOCK_SIZES}"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.accelerator = accelerator
        self._shape = shape
        self._rotation = torch.cat([rotary.cos, rotary.sin], dim=1).to(accelerator.device)
        self._group = shape.num_heads // shape.num_kv_heads
        sizes = (shape.head_size, self._group, dtype.itemsize, dtype.itemsize)
        self.small = decode_tile(*sizes)
        self.large = prefill_tile(*sizes, accelerator.capability)
        self._rule = rules.causal()
        self._scale = shape.head_size**-0.5
        self.table = torch.zeros((8, 16), dtype=torch.int32, device=accelerator.device)
        """int32 [rows, columns]; replaced by a larger one when a row or a column beyond it comes."""
        self.sent: SentStep | None = None
        """The step that `attend` serves."""
        self.kv_heads = shape.num_kv_heads
        self.frames = np.zeros((0, num_blocks, 0), np.uint8)
        """Nothing of the pool is host memory."""
        self.dtype = dtype
        self.pool = self._new_pool(num_blocks)

    def close(self) -> None:
        """Nothing here outlives the object."""

    def _new_pool(self, num_blocks: int) -> torch.Tensor:
        s = self._shape
        size = (s.num_layers, 2, num_blocks, s.num_kv_heads, self.block_size, s.head_size)
        return torch.empty(size, dtype=self.dtype, device=self.accelerator.device)

    def resize(self, num_blocks: int) -> None:
        """Replaces the pool by one of `num_blocks`, its content lost."""
        self.num_blocks = num_blocks
        del self.pool
        self.pool = self._new_pool(num_blocks)

    def begin(self, step: Step) -> None:
        """Takes in a step and sends its arrays."""
        self.apply(step)
        self.sent = self.send(step)

    def apply(self, step: Step) -> None:
        """Brings the step's table changes to the device."""
        rows, columns, blocks = step.changes
        if len(rows):
            self._reserve(int(rows.max()) + 1, int(columns.max()) + 1)
            delta = last_changes(rows, columns, blocks)
            packed = Packed.of([delta.reshape(-1)], self.accelerator)
            apply_delta(self.table, packed.views[0].view(3, -1))

    def _reserve(self, rows: int, columns: int) -> None:
        have_rows, have_columns = self.table.shape
        if rows > have_rows or columns > have_columns:
            table = self.table.new_zeros(
                (
                    have_rows if rows <= have_rows else max(rows, 2 * have_rows),
                    have_columns if columns <= have_columns else max(columns, 2 * have_columns),
                )
            )
            table[:have_rows, :have_columns] = self.table
            self.table = table

    def send(self, step: Step) -> SentStep:
        """The step's arrays on the device, its attention cut into launches."""
        kv_lens = step.starts + step.counts
        launches = schedule(
            step.counts,
            kv_lens,
            small=self.small,
            large=self.large,
            group=self._group,
            kv_heads=self._shape.num_kv_heads,
            num_sms=self.accelerator.multiprocessors,
        )
        columns = [
            step.ids.numpy(),
            step.positions,
            step.slots,
            step.sampled.numpy(),
            step.rows,
            np.append(step.offsets, len(step.positions)),
            kv_lens,
        ]
        for launch in launches:
            columns += [launch.tile_seqs, launch.tile_tokens, np.array([launch.share])]
        ids, positions, slots, sampled, rows, starts, lens, *rest = Packed.of(
            columns, self.accelerator
        ).views
        placed = [
            self.place(launch.tile, launch.tokens, launch.splits, *rest[3 * i : 3 * i + 3])
            for i, launch in enumerate(launches)
        ]
        return SentStep(ids, positions, slots, sampled, Batch(rows, starts, lens), placed)

    def place(self, tile: Tile, tokens: int, splits: int, *index: torch.Tensor) -> Placed:
        """A launch for this model's heads. `index`: its sequences, first queries and share, on the device."""
        seqs, firsts, share = index
        s = self._shape
        return place(
            tile,
            tokens,
            splits,
            seqs,
            firsts,
            share,
            kv_heads=s.num_kv_heads,
            head_dim=s.head_size,
        )

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """See `AttentionBackend.attend`."""
        sent, s = self.sent, self._shape
        assert sent is not None
        heads = qkv.view(len(qkv), -1, s.head_size)
        q, k, v = torch.split(heads, [s.num_heads, s.num_kv_heads, s.num_kv_heads], dim=1)
        cache = KVCache(self.pool[layer, 0], self.pool[layer, 1])
        write_kv(q, k, v, cache, sent.slots, sent.positions, self._rotation)
        out = torch.empty((len(qkv), s.num_heads, s.head_size), dtype=q.dtype, device=q.device)
        attend(
            out,
            q,
            cache,
            self.table,
            sent.batch,
            sent.launches,
            self._rule,
            self._scale,
            capability=self.accelerator.capability,
        )
        return out.view(len(qkv), -1)
