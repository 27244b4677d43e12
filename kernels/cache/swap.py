"""Blocks in host memory, and their way there and back beside the model's work. Knows frames and streams; knows no sequences.

A swap-out gathers blocks into a staging area on the device, then copies each to the host in one piece; a swap-in does the reverse. On
CUDA both run on a stream of their own with pinned host memory, after all that the model's stream was given before.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.cache.blocks import gather_blocks, scatter_blocks

I32 = NDArray[np.int32]


class Pending(NamedTuple):
    """A transfer under way; without CUDA it is over when it is returned."""

    event: torch.cuda.Event | None

    def done(self) -> bool:
        """Whether it is over."""
        return self.event is None or self.event.query()

    def wait(self) -> None:
        """Blocks until it is over."""
        if self.event is not None:
            self.event.synchronize()


class HostPool:
    """`num_blocks` blocks of all planes of a device pool in host memory.

    Transfers run in the order in which they are asked for. The caller names no block that another transfer under way names, and reads
    no frame before the swap-in that fills it is over.
    """

    def __init__(self, pool: torch.Tensor, num_blocks: int, staged_blocks: int = 16) -> None:
        """`pool`: [planes, frames, ...] contiguous; `staged_blocks`: how many blocks the staging area holds."""
        planes, _, *block = pool.shape
        cuda = pool.device.type == "cuda"
        self.blocks = torch.empty((num_blocks, planes, *block), dtype=pool.dtype, pin_memory=cuda)
        """[num_blocks, planes, ...] on the host."""
        self._pool = pool
        self._staging = pool.new_empty((staged_blocks, planes, *block))
        self._stream = torch.cuda.Stream(pool.device) if cuda else None

    def swap_out(self, frames: I32, hosts: I32) -> Pending:
        """Copies pool block frames[i] to host block hosts[i]."""
        return self._run(frames, hosts, out=True)

    def swap_in(self, frames: I32, hosts: I32) -> Pending:
        """Copies host block hosts[i] to pool block frames[i]."""
        return self._run(frames, hosts, out=False)

    def _run(self, frames: I32, hosts: I32, out: bool) -> Pending:
        if self._stream is None:
            self._transfer(frames, hosts, out)
            return Pending(None)
        self._stream.wait_stream(torch.cuda.default_stream(self._pool.device))
        with torch.cuda.stream(self._stream):
            self._transfer(frames, hosts, out)
            event = torch.cuda.Event()
            event.record()
        return Pending(event)

    def _transfer(self, frames: I32, hosts: I32, out: bool) -> None:
        size = len(self._staging)
        for begin in range(0, len(frames), size):
            ids = torch.from_numpy(np.array(frames[begin : begin + size], np.int32))
            places = hosts[begin : begin + size].tolist()
            ids = ids.to(self._pool.device)
            if out:
                gather_blocks(self._staging, self._pool, ids)
            for staged, host in zip(self._staging, places, strict=False):
                to, from_ = (self.blocks[host], staged) if out else (staged, self.blocks[host])
                to.copy_(from_, non_blocking=True)
            if not out:
                scatter_blocks(self._pool, self._staging, ids)
