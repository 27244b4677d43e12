"""Blocks in host memory, and their way there and back beside the model's work. Knows frames and streams; knows no sequences.

A swap-out gathers blocks into a staging area on the device, then copies each to the host in one piece; a swap-in does the reverse. On
CUDA both run on a stream of their own with pinned host memory, after all that the model's stream was given before.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.cache.blocks import copy_blocks, gather_blocks, scatter_blocks

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

    def copy(self, sources: I32, targets: I32) -> None:
        """Copies frames sources[i] to frames targets[i], as if in order, before what the model's stream is given next."""
        if not len(sources):
            return
        # a frame that is both read and written would depend on which copy comes first: then one launch for each
        apart = not np.intersect1d(sources, targets).size
        for one in [slice(None)] if apart else [slice(i, i + 1) for i in range(len(sources))]:
            copy_blocks(self._pool, self._ids(sources[one]), self._ids(targets[one]))

    def copy_out(self, frames: I32, hosts: I32) -> None:
        """As `swap_out`, and waits."""
        self.swap_out(frames, hosts).wait()

    def copy_in(self, frames: I32, hosts: I32) -> None:
        """As `swap_in`, and waits."""
        self.swap_in(frames, hosts).wait()

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
            ids = self._ids(frames[begin : begin + size])
            places = hosts[begin : begin + size].tolist()
            if out:
                gather_blocks(self._staging, self._pool, ids)
            for staged, host in zip(self._staging, places, strict=False):
                to, from_ = (self.blocks[host], staged) if out else (staged, self.blocks[host])
                to.copy_(from_, non_blocking=True)
            if not out:
                scatter_blocks(self._pool, self._staging, ids)

    def _ids(self, frames: I32) -> torch.Tensor:
        return torch.from_numpy(np.array(frames, np.int32)).to(self._pool.device)
