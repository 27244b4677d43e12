"""The Llama decoder on an accelerator. Knows which steps are replayed as captured graphs; knows no plans and no sampling.

Steps of decodes alone are padded to a bucket of rows and replayed as one CUDA graph, captured when its bucket first comes; other
steps are launched kernel by kernel. Padding rows have no slot, no keys and no tile, so they write and read nothing.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from engine.models.device import Packed
from engine.models.llama import Llama
from engine.models.step import Step
from engine.models.triton_attention import SentStep, TritonAttention
from kernels.attention.launch import Batch
from kernels.attention.schedule import even_share, fixed_splits
from kernels.cache.swap import HostPool

BUCKETS: Final = (1, 2, 4, *range(8, 257, 8))
"""Rows of the captured graphs."""
_WARM_UPS: Final = 2
"""Runs before a capture: kernels are compiled and libraries take their workspaces."""


class TritonLlama:
    """Implements `engine.models.decoder.Decoder`."""

    def __init__(
        self, llama: Llama, attention: TritonAttention, buckets: Sequence[int] = BUCKETS
    ) -> None:
        """`llama`: its tensors on the device, its attention `attention`."""
        self._llama = llama
        self._attention = attention
        self._buckets = sorted(buckets)
        self._decodes: dict[int, _Decodes] = {}
        self._memory = _GraphMemory()
        self.frames = attention.frames
        """The pool is not host memory: see `copies`."""

    def forward(self, step: Step) -> torch.Tensor:
        """Logits [S, vocabulary] float32 on the device, valid until the next call."""
        attention = self._attention
        rows = len(step.rows)
        if step.num_decodes == rows == len(step.sampled) and rows <= self._buckets[-1]:
            attention.apply(step)
            return self._bucket(rows).forward(step)[:rows]
        attention.begin(step)
        sent = attention.sent
        assert sent is not None
        return self._llama.compute(sent.ids, sent.sampled)

    def copies(self, host_blocks: int) -> HostPool:
        """Copies of blocks within the pool, and to and from `host_blocks` blocks of host memory."""
        return HostPool(self._attention.pool.flatten(0, 1), host_blocks)

    def close(self) -> None:
        """Drops the graphs."""
        self._decodes.clear()

    def _bucket(self, rows: int) -> "_Decodes":
        size = next(b for b in self._buckets if b >= rows)
        found = self._decodes.get(size)
        if found is None or found.is_stale():
            found = self._decodes[size] = _Decodes(size, self._llama, self._attention, self._memory)
        return found


class _GraphMemory:
    """One pool of memory for all graphs: they never run at once, and nothing of one is wanted when another runs."""

    def __init__(self) -> None:
        self._handle: Any = None

    def handle(self) -> Any:
        """The pool, made when it is first wanted."""
        if self._handle is None:
            self._handle = torch.cuda.graph_pool_handle()
        return self._handle


class _Decodes:
    """Decode steps of up to `size` rows in fixed memory, so that a graph captured once serves each of them."""

    def __init__(
        self, size: int, llama: Llama, attention: TritonAttention, memory: _GraphMemory
    ) -> None:
        self._size = size
        self._llama = llama
        self._attention = attention
        self._memory = memory
        self._table, self._pool = attention.table, attention.pool
        self._splits = fixed_splits(size, attention.kv_heads, attention.accelerator.multiprocessors)
        self._packed = Packed([size] * 4 + [size + 1] + [size] * 3 + [1], attention.accelerator)
        ids, positions, slots, rows, starts, lens, seqs, tokens, share = self._packed.views
        self._packed.host[4][:] = np.arange(size + 1)
        places = torch.arange(size, device=ids.device)
        placed = attention.place(attention.small, 1, self._splits, seqs, tokens, share)
        batch = Batch(rows, starts, lens)
        self._sent = SentStep(ids, positions, slots, places, batch, [placed])
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: torch.Tensor | None = None

    def is_stale(self) -> bool:
        """Whether table or pool have moved since."""
        return self._table is not self._attention.table or self._pool is not self._attention.pool

    def forward(self, step: Step) -> torch.Tensor:
        """Logits [size, vocabulary]; rows past the step's are meaningless."""
        n = len(step.rows)
        ids, positions, slots, rows, _, lens, seqs, _, share = self._packed.host
        for column, values, padding in (
            (ids, step.ids.numpy(), 0),
            (positions, step.positions, 0),
            (slots, step.slots, -1),
            (rows, step.rows, 0),
            (lens, step.starts + 1, 0),
            (seqs, np.arange(n), -1),
        ):
            column[:n] = values
            column[n:] = padding
        attention = self._attention
        key_tiles = -(-lens[:n].astype(np.int64) // attention.small.n)
        share[0] = even_share(
            key_tiles,
            attention.kv_heads,
            attention.accelerator.multiprocessors,
            attention.small.n,
            self._splits,
        )
        self._packed.send()
        attention.sent = self._sent
        if not attention.accelerator.is_cuda:
            return self._compute()
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            self._capture(self._graph)
        self._graph.replay()
        assert self._logits is not None
        return self._logits

    def _compute(self) -> torch.Tensor:
        return self._llama.compute(self._sent.ids, self._sent.sampled)

    def _capture(self, graph: torch.cuda.CUDAGraph) -> None:
        """Warms up on a stream of its own, as captures ask, then captures."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, pool=self._memory.handle()):
            self._logits = self._compute()
