"""The torch decoder's attention on this CPU's vector unit: rotation, cache write and paged walk of a layer in one call into
`kernels/cpu`. For models whose products the compiled decoder cannot do. Knows steps; knows no weights.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from engine.models.rotary import Rotary
from engine.models.shape import ModelShape
from engine.models.step import Step
from kernels.cpu.cache import KINDS
from kernels.cpu.host import physical_cores
from kernels.cpu.paged import PagedAttention, PoolShape, address, scratch_bytes
from kernels.cpu.team import Program, Team, allocate


def pool_shape(
    shape: ModelShape, num_blocks: int, block_size: int, dtype: str = "bfloat16"
) -> PoolShape:
    """The kernels' view of a model's pool.

    Raises:
        ValueError: block or head size is not one that the kernels are built for.
    """
    return PoolShape(
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_size,
        block_size=block_size,
        num_blocks=num_blocks,
        kind=KINDS[dtype],
    )


class CompiledAttention:
    """A pool, a team of threads, and one small program for each layer; implements `AttentionBackend`.

    Programs hold addresses, so they are built anew when a larger step than ever before moves the memory they name.
    """

    def __init__(self, pool: PoolShape, rotary: Rotary, threads: int | None = None) -> None:
        """`threads`: None is one for each physical core."""
        self.num_blocks, self.block_size = pool.num_blocks, pool.block_size
        self._pool = pool
        self._team = Team(physical_cores() if threads is None else threads, scratch_bytes(pool))
        turns = torch.cat((rotary.cos, rotary.sin), dim=1).numpy()
        self._paged = PagedAttention(pool, turns, self._team)
        self._programs: list[NDArray[np.int64]] = []

    @property
    def frames(self) -> NDArray[np.uint8]:
        """The pool, see `AttentionBackend`."""
        return self._paged.frames

    def begin(self, step: Step) -> None:
        """Takes in a step."""
        if self._paged.fit(step.starts, step.counts):
            self._build()
        self._paged.begin(step.rows, step.starts, step.counts, step.tables)

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """See `AttentionBackend.attend`; layers of a step are asked in order."""
        self._qkv[: len(qkv)].copy_(qkv)
        self._team.run(self._programs[layer])
        return self._out[: len(qkv)].to(qkv.dtype)

    def close(self) -> None:
        """Ends the threads; idempotent."""
        self._team.close()

    def _build(self) -> None:
        paged, width = self._paged, self._pool.qkv_width
        qkv = allocate(4 * paged.max_tokens * width).view(np.float32)
        self._qkv = torch.from_numpy(qkv.reshape(-1, width))
        out = paged.attended.view(np.float32)[: paged.max_tokens * self._pool.width]
        self._out = torch.from_numpy(out.reshape(-1, self._pool.width))
        self._programs = []
        for layer in range(self._pool.num_layers):
            program = Program()
            if layer == 0:
                paged.add_prepare(program)
            paged.add_layer(program, layer, address(qkv))
            self._programs.append(program.build())
