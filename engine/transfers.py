"""Blocks on the move: between frames of a pool, and between the pool and its host blocks. Plain copies of bytes in this thread.

Knows frames and host blocks as numbers, and that a frame is opaque bytes; knows no scheduler, and not when it is safe to copy:
whoever asks holds the frames. NumPy copies without the interpreter's lock, so a transfer in its own thread overlaps the model's steps.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.core.plan import Transfer
from engine.executor import Executor

Bytes = NDArray[np.uint8]
I32 = NDArray[np.int32]


class BlockCopies(Protocol):
    """What the runner asks of a pool and its host blocks. Returns when the copies are done, or ordered before what comes next."""

    def copy(self, sources: I32, targets: I32) -> None:
        """Copies frames sources[i] to frames targets[i], in order."""
        ...

    def copy_out(self, frames: I32, hosts: I32) -> None:
        """Copies frames[i] to host block hosts[i]."""
        ...

    def copy_in(self, frames: I32, hosts: I32) -> None:
        """Copies host block hosts[i] to frames[i]."""
        ...


class HostPool:
    """`host_blocks` blocks in host memory, beside a pool whose frames the host can address."""

    def __init__(self, frames: Bytes, host_blocks: int) -> None:
        """Sets up; host blocks are touched, and so take memory, when they are first written.

        Args:
            frames: [parts, num_blocks, bytes], a view of the whole pool; each frame is `frames[:, i]`.
            host_blocks: 0 where nothing is swapped.
        """
        self.host_blocks = host_blocks
        self._frames = frames
        self._hosts: Bytes = np.zeros((host_blocks, len(frames), frames.shape[2]), np.uint8)

    def copy(self, sources: I32, targets: I32) -> None:
        """Copies frames sources[i] to frames targets[i], in order."""
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self._frames[:, target] = self._frames[:, source]

    def copy_out(self, frames: I32, hosts: I32) -> None:
        """Copies frames[i] to host block hosts[i]."""
        for frame, host in zip(frames.tolist(), hosts.tolist(), strict=True):
            self._hosts[host] = self._frames[:, frame]

    def copy_in(self, frames: I32, hosts: I32) -> None:
        """Copies host block hosts[i] to frames[i]."""
        for frame, host in zip(frames.tolist(), hosts.tolist(), strict=True):
            self._frames[:, frame] = self._hosts[host]


def carry_out(executor: Executor, transfer: Transfer) -> None:
    """Has `executor` copy what the transfer asks for.

    Raises:
        ExecutorError: it cannot; what was to be written holds anything.
    """
    if transfer.out:
        executor.copy_out(transfer.frames, transfer.hosts)
    else:
        executor.copy_in(transfer.frames, transfer.hosts)
