"""Blocks on the move: between frames of a pool, and between the pool and its host blocks. Plain copies of bytes in this thread.

Knows frames and host blocks as numbers, and that a frame is opaque bytes; knows no scheduler, and not when it is safe to copy:
whoever asks holds the frames. NumPy copies without the interpreter's lock, so a transfer in its own thread overlaps the model's steps.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.plan import Transfer
from engine.executor import Executor

Bytes = NDArray[np.uint8]
I32 = NDArray[np.int32]


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


class DevicePool:
    """`host_blocks` blocks in host memory, pinned, beside a pool on a device. Swaps run on a stream of their own."""

    def __init__(self, frames: torch.Tensor, host_blocks: int) -> None:
        """`frames`: uint8 [parts, num_blocks, bytes] on the device."""
        cuda = frames.device.type == "cuda"
        self.host_blocks = host_blocks
        self._frames = frames
        shape = (host_blocks, len(frames), frames.shape[2])
        self._hosts = torch.zeros(shape, dtype=torch.uint8, pin_memory=cuda and host_blocks > 0)
        self._stream = torch.cuda.Stream(frames.device) if cuda else None  # type: ignore[no-untyped-call]

    def copy(self, sources: I32, targets: I32) -> None:
        """Copies frames sources[i] to frames targets[i]; all are read before any is written."""
        if len(sources):
            self._frames[:, self._index(targets)] = self._frames[:, self._index(sources)]

    def copy_out(self, frames: I32, hosts: I32) -> None:
        """Copies frames[i] to host block hosts[i]; done when it returns."""
        with torch.cuda.stream(self._stream):
            for frame, host in zip(frames.tolist(), hosts.tolist(), strict=True):
                self._hosts[host].copy_(self._frames[:, frame], non_blocking=True)
        self._wait()

    def copy_in(self, frames: I32, hosts: I32) -> None:
        """Copies host block hosts[i] to frames[i]; done when it returns."""
        with torch.cuda.stream(self._stream):
            for frame, host in zip(frames.tolist(), hosts.tolist(), strict=True):
                self._frames[:, frame].copy_(self._hosts[host], non_blocking=True)
        self._wait()

    def _index(self, blocks: I32) -> torch.Tensor:
        return torch.from_numpy(blocks.astype(np.int64)).to(self._frames.device)

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


def host_pool(frames: Bytes | torch.Tensor, host_blocks: int) -> HostPool | DevicePool:
    """What moves the blocks of a pool that lies here, or on a device."""
    if isinstance(frames, torch.Tensor):
        return DevicePool(frames, host_blocks)
    return HostPool(frames, host_blocks)


def carry_out(executor: Executor, transfer: Transfer) -> None:
    """Has `executor` copy what the transfer asks for.

    Raises:
        ExecutorError: it cannot; what was to be written holds anything.
    """
    if transfer.out:
        executor.copy_out(transfer.frames, transfer.hosts)
    else:
        executor.copy_in(transfer.frames, transfer.hosts)
