"""A team of threads that runs programs (`program.py`), and the memory that programs work on.

The threads enter compiled code once and stay there: between programs they spin briefly, then sleep on a futex, so neither starting a
step nor waiting for one takes Python's lock. One program runs at a time; `run` may be called from any thread.
"""

import mmap
import threading
import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kernels.cpu.build import entry
from kernels.cpu.program import CONTROL_BYTES, MAX_OPERATIONS, OPERATION_WORDS, STOP

HUGE_PAGE = 2 << 20


def allocate(num_bytes: int) -> NDArray[np.uint8]:
    """Zeroed memory, page-aligned, on huge pages where the system grants them (a step touches every weight: that is many pages)."""
    size = max(num_bytes, 1)
    if size < HUGE_PAGE:
        return np.frombuffer(mmap.mmap(-1, size), np.uint8, size)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    region = mmap.mmap(-1, size + HUGE_PAGE, flags=private)
    start = -np.frombuffer(region, np.uint8).ctypes.data % HUGE_PAGE
    if hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(region, np.uint8, size, start)


class Program:
    """A list of operations under construction, and what must stay alive while it may run."""

    def __init__(self) -> None:
        self.operations: list[list[int]] = []

    def add(self, code: int, *operands: int) -> None:
        """Appends an operation.

        Raises:
            ValueError: too many operands, or too many operations.
        """
        if len(operands) >= OPERATION_WORDS or len(self.operations) == MAX_OPERATIONS:
            raise ValueError(
                f"a program has at most {MAX_OPERATIONS} operations of {OPERATION_WORDS - 1} operands"
            )
        self.operations.append([code, *operands, *[0] * (OPERATION_WORDS - 1 - len(operands))])

    def build(self) -> NDArray[np.int64]:
        """int64 [operations, OPERATION_WORDS]."""
        return np.array(self.operations, np.int64)


class Team:
    """`threads` ranks, the caller of `run` being rank 0, each with `scratch_bytes` of its own.

    A team that nobody refers to any more is closed: its threads wait on its memory, which another team may get next.
    """

    def __init__(self, threads: int, scratch_bytes: int) -> None:
        if threads < 1:
            raise ValueError(f"a team needs at least 1 thread, not {threads}")
        self.threads = threads
        self._control = allocate(CONTROL_BYTES)
        self._stride = -(-scratch_bytes // 4096) * 4096
        self._scratch = allocate(self._stride * threads)
        self._lock = threading.Lock()
        self._enter = entry()
        workers = [
            threading.Thread(
                target=self._enter,
                args=(self._address, rank, self._place(rank), 0, 0),
                daemon=True,
                name=f"team-{rank}",
            )
            for rank in range(1, threads)
        ]
        for worker in workers:
            worker.start()
        memory = (self._control, self._scratch)
        self._end = weakref.finalize(self, _dismiss, self._enter, memory, workers)

    @property
    def _address(self) -> int:
        return int(self._control.ctypes.data)

    def _place(self, rank: int) -> int:
        return int(self._scratch.ctypes.data) + rank * self._stride

    def run(self, program: NDArray[np.int64]) -> None:
        """Runs a built program; returns when it is done. Releases Python's lock meanwhile.

        Raises:
            ValueError: the team is closed.
        """
        with self._lock:
            if not self._end.alive:
                raise ValueError("the team is closed")
            self._enter(
                self._address,
                0,
                self._place(0),
                int(program.ctypes.data),
                len(program),
            )

    def close(self) -> None:
        """Ends the threads; idempotent."""
        with self._lock:
            self._end()


def _dismiss(
    enter: Callable[[int, int, int, int, int], None],
    memory: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    workers: list[threading.Thread],
) -> None:
    """Ends a team's threads; its control words and scratch are kept until then."""
    control, scratch = memory
    control[STOP : STOP + 8].view(np.int64)[0] = 1
    enter(int(control.ctypes.data), 0, int(scratch.ctypes.data), 0, 0)
    for worker in workers:
        worker.join()
