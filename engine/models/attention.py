"""Attention over a paged KV cache: the seam that models call, and a plain torch backend. Knows blocks and slots; knows no
requests, no layers' weights.

A backend owns the pool. Per step it is told once what the step is, then asked layer by layer. It gets the fused projection
before rotation, so that rotation, cache write and attention may be one kernel.
"""

from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as fn
from numpy.typing import NDArray

from engine.models.rotary import Rotary
from engine.models.shape import ModelShape
from engine.models.step import Step


class AttentionBackend(Protocol):
    """Rotation, cache write and attention of one model's layers."""

    num_blocks: int
    block_size: int

    @property
    def frames(self) -> NDArray[np.uint8]:
        """[parts, num_blocks, bytes] uint8, a view of the pool: each frame is `frames[:, i]`, opaque bytes."""
        ...

    def begin(self, step: Step) -> None:
        """Takes in a step; arrays of `step` stay unchanged until the next call."""
        ...

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """Attention output of the step at `layer`, [T, num_heads * head_size], after its keys and values are in the cache.

        Args:
            layer: from 0.
            qkv: [T, (num_heads + 2 * num_kv_heads) * head_size], contiguous, not rotated; may be overwritten.
        """
        ...

    def close(self) -> None:
        """Frees threads and memory that would outlive the object; idempotent."""
        ...


class TorchAttention:
    """Gathers each row's blocks and calls torch's fused attention: simple, in any dtype, and slow for large batches.

    The pool is [layers, 2, blocks, KV heads, block_size, head_size], head-major within a block. Blocks hold whatever their
    last owner left, even NaN; what lies at masked places is zeroed, because a mask does not hide a NaN.
    """

    def __init__(
        self,
        shape: ModelShape,
        rotary: Rotary,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._shape = shape
        self._rotary = rotary
        self.pool = torch.zeros(
            (shape.num_layers, 2, num_blocks, shape.num_kv_heads, block_size, shape.head_size),
            dtype=dtype,
        )
        self.frames = (
            self.pool.view(torch.uint8).numpy().reshape(2 * shape.num_layers, num_blocks, -1)
        )

    def begin(self, step: Step) -> None:
        """Takes in a step: looks up rotations, and for the decodes the padded tables and their mask."""
        self._step = step
        positions = torch.from_numpy(step.positions)
        self._cos, self._sin = self._rotary.at(positions)
        slots = torch.from_numpy(step.slots)
        self._blocks = slots // self.block_size
        self._places = slots % self.block_size
        self._decode_tables, self._decode_mask = self._padded_decodes(step)
        self._decode_unseen = ~self._decode_mask.transpose(2, 3)
        self._chunk_tables = [
            torch.from_numpy(step.tables[row, : -(-int(end) // self.block_size)].astype(np.int64))
            for row, end in zip(
                step.rows[step.num_decodes :],
                (step.starts + step.counts)[step.num_decodes :],
                strict=True,
            )
        ]

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """See `AttentionBackend.attend`."""
        s, step = self._shape, self._step
        heads = qkv.view(len(qkv), -1, s.head_size)
        sizes = [s.num_heads, s.num_kv_heads, s.num_kv_heads]
        q, k, v = torch.split(heads, sizes, dim=1)
        q = self._rotary.rotate(q, self._cos, self._sin)
        keys, values = self.pool[layer]
        keys[self._blocks, :, self._places] = self._rotary.rotate(k, self._cos, self._sin)
        values[self._blocks, :, self._places] = v
        out = torch.empty_like(q)
        if n := step.num_decodes:
            out[:n] = self._decode(q[:n], keys, values)
        for table, start, count, offset in zip(
            self._chunk_tables,
            step.starts[n:].tolist(),
            step.counts[n:].tolist(),
            step.offsets[n:].tolist(),
            strict=True,
        ):
            own = slice(offset, offset + count)
            out[own] = self._chunk(q[own], keys[table], values[table], start)
        return out.view(len(qkv), -1)

    def close(self) -> None:
        """Nothing here outlives the object."""

    def _padded_decodes(self, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        """Block tables of the decodes, [n, blocks], and which of their positions are to be seen, [n, 1, 1, positions]."""
        n = step.num_decodes
        lengths = torch.from_numpy(step.starts[:n].astype(np.int64)) + 1
        columns = -(-int(lengths.max()) // self.block_size) if n else 0
        tables = torch.from_numpy(step.tables[step.rows[:n], :columns].astype(np.int64))
        seen = torch.arange(columns * self.block_size) < lengths[:, None]
        tables.masked_fill_(~seen[:, :: self.block_size], 0)
        return tables, seen[:, None, None, :]

    def _decode(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """[n, heads, head size] of rows with one position each. Keys and values: one layer's pool."""
        n = len(q)
        k = self._flat(keys[self._decode_tables]).masked_fill_(self._decode_unseen, 0)
        v = self._flat(values[self._decode_tables]).masked_fill_(self._decode_unseen, 0)
        groups = q.view(n, self._shape.num_kv_heads, -1, self._shape.head_size)
        out = fn.scaled_dot_product_attention(groups, k, v, attn_mask=self._decode_mask)
        return out.reshape(q.shape)

    def _chunk(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int
    ) -> torch.Tensor:
        """[count, heads, head size] of one row's chunk. Keys and values: the row's blocks, [blocks, KV heads, ...]."""
        count = len(q)
        length = start + count
        k = self._flat(keys[None])[:, :, :length]
        v = self._flat(values[None])[:, :, :length]
        mask = None
        if start:
            mask = torch.ones(count, length, dtype=torch.bool).tril_(start)
        out = fn.scaled_dot_product_attention(
            q.transpose(0, 1)[None], k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        return out[0].transpose(0, 1)

    def _flat(self, blocks: torch.Tensor) -> torch.Tensor:
        """[n, blocks, KV heads, block_size, size] as [n, KV heads, positions, size]."""
        n, _, heads, _, size = blocks.shape
        return blocks.transpose(1, 2).reshape(n, heads, -1, size)
