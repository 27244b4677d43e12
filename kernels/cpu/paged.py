"""Paged attention over a pool of its own: the records of a step, and the operations that one layer adds to a program.

Used whole by `attend`, for models whose other parts run elsewhere, or built into a larger program by `decoder.py`. Knows arrays; knows
no plans.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.cpu import attention_scratch, cache, program, steps
from kernels.cpu.program import float_bits
from kernels.cpu.team import Program, Team, allocate

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F32 = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class PoolShape:
    """Sizes of attention and of its pool.

    Raises:
        ValueError: a size that the kernels are not built for.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    num_blocks: int
    kind: int = cache.BF16

    def __post_init__(self) -> None:
        if self.block_size not in cache.BLOCK_SIZES:
            raise ValueError(
                f"block_size is {self.block_size}; it must be one of {cache.BLOCK_SIZES}"
            )
        if self.head_dim % 16 or not 16 <= self.head_dim <= 256:
            raise ValueError(f"head_dim is {self.head_dim}; it must be a multiple of 16 up to 256")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} query heads do not divide among {self.num_kv_heads} KV heads"
            )

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def width(self) -> int:
        """Numbers of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Numbers of all query, K and V heads."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def frame_bytes(self) -> int:
        """Bytes of a frame of one layer."""
        return cache.frame_bytes(self.kind, self.num_kv_heads, self.block_size, self.head_dim)


def scratch_bytes(shape: PoolShape) -> int:
    """Scratch that a thread of the team needs."""
    return max(attention_scratch.scratch_bytes(shape.group, shape.head_dim), 8 * shape.head_dim)


def address(array: NDArray[Any]) -> int:
    """Where an array's first element lies."""
    return int(array.ctypes.data)


class PagedAttention:
    """Pool and step records. Addresses change when a larger step than ever before makes room: `fit` says so."""

    def __init__(self, shape: PoolShape, rotary: F32 | None, team: Team) -> None:
        """`rotary`: float32 [positions, head_dim], a row's cosines, then its sines; None: positions are not rotated.

        The pool starts as zeros.
        """
        self.shape = shape
        self._team = team
        self._rotary = None if rotary is None else np.ascontiguousarray(rotary, np.float32)
        self.layer_bytes = shape.frame_bytes * shape.num_blocks
        self.pool = allocate(self.layer_bytes * shape.num_layers)
        self.frames = self.pool.reshape(shape.num_layers, shape.num_blocks, shape.frame_bytes)
        """[num_layers, num_blocks, bytes], a view of the pool: frame i is `frames[:, i]`."""
        self.header = np.zeros(steps.HEADER_WORDS, np.int64)
        self.header[steps.KIND : steps.BLOCK_SIZE + 1] = (
            shape.kind,
            shape.num_kv_heads,
            shape.group,
            shape.head_dim,
            shape.block_size,
        )
        self.max_tokens = self._max_sequences = self._max_tiles = 0

    def fit(self, starts: I32, counts: I32) -> bool:
        """Makes room for a step; True where that moved memory, so that programs must be built anew."""
        tokens, sequences = int(counts.sum()), len(counts)
        tiles = int((starts[counts == 1] // steps.SPAN + 1).sum())
        if (
            0 < self.max_tokens >= tokens
            and sequences <= self._max_sequences
            and tiles <= self._max_tiles
        ):
            return False
        shape = self.shape
        self.max_tokens = max(tokens, self.max_tokens, 64)
        self._max_sequences = max(sequences, self._max_sequences, 64)
        self._max_tiles = max(2 * tiles, self._max_tiles, 256)
        self.tokens = np.zeros((self.max_tokens, steps.TOKEN_WORDS), np.int64)
        self._records = np.zeros((self._max_sequences, steps.SEQUENCE_WORDS), np.int64)
        self._items = np.zeros((self._max_tiles + self.max_tokens, steps.ITEM_WORDS), np.int64)
        self._queries = allocate(
            (self.max_tokens + 8) * shape.width * cache.element_bytes(shape.kind)
        )
        self._partials = allocate(
            self._max_tiles
            * shape.num_kv_heads
            * attention_scratch.partial_bytes(shape.group, shape.head_dim)
        )
        self.attended = allocate(4 * self.max_tokens * shape.width)
        return True

    def begin(self, rows: I32, starts: I32, counts: I32, tables: I32) -> None:
        """Takes in a step for which there is room. See `attend`; `tables` must stay until the step has run."""
        self.header[: steps.SAMPLED] = (counts.sum(), len(rows))
        records = self._records[: len(rows)]
        records[:, steps.TABLE] = address(tables) + rows.astype(np.int64) * tables.strides[0]
        records[:, steps.START] = starts
        records[:, steps.COUNT] = counts
        records[:, steps.FIRST] = counts.cumsum() - counts

    def add_prepare(self, p: Program) -> None:
        """The operation that a program starts with."""
        records, tokens, items = address(self._records), address(self.tokens), address(self._items)
        p.add(
            program.PREPARE,
            address(self.header),
            records,
            tokens,
            items,
            attention_scratch.chunk_tokens(self.shape.group),
        )

    def add_layer(self, p: Program, layer: int, qkv: int, panel: int = 0) -> None:
        """Writes K and V of the step, attends: from `qkv`, float32 [tokens, qkv_width], to `attended`, and quantised to `panel`."""
        s = self.shape
        header, tokens, records = address(self.header), address(self.tokens), address(self._records)
        items, queries, partials = (
            address(self._items),
            address(self._queries),
            address(self._partials),
        )
        out = address(self.attended)
        pool = address(self.pool) + layer * self.layer_bytes
        rotary = 0 if self._rotary is None else address(self._rotary)
        scale = float_bits(s.head_dim**-0.5)
        p.add(program.PUT, header, tokens, qkv, 4 * s.qkv_width, rotary, queries, pool, scale)
        p.add(program.ATTEND, header, records, items, queries, pool, out, 4 * s.width, partials)
        count = header + 8 * steps.ROWS
        p.add(program.FINISH, count, header, records, tokens, out, 4 * s.width, partials, panel)

    def attend(self, layer: int, qkv: F32, rows: I32, starts: I32, counts: I32, tables: I32) -> F32:
        """Attention output float32 [T, width] of a step at one layer, after its K and V are in the pool; valid until the next call.

        Args:
            layer: from 0.
            qkv: float32 [T, qkv_width], contiguous: all query heads, all K heads, all V heads, not rotated.
            rows: int32 [R], each sequence's row of `tables`.
            starts: int32 [R], its first new position.
            counts: int32 [R], its new positions, at least 1; they sum to T.
            tables: int32 [rows, columns] block tables, contiguous.

        Raises:
            ValueError: an array has another shape, type or stride.
        """
        tokens = int(counts.sum())
        if (
            qkv.shape != (tokens, self.shape.qkv_width)
            or qkv.dtype != np.float32
            or not qkv.flags.c_contiguous
        ):
            raise ValueError(f"qkv must be contiguous float32 [{tokens}, {self.shape.qkv_width}]")
        if tables.dtype != np.int32 or tables.ndim != 2 or not tables.flags.c_contiguous:
            raise ValueError("tables must be contiguous int32 [rows, columns]")
        self.fit(starts, counts)
        self.begin(rows, starts, counts, tables)
        p = Program()
        self.add_prepare(p)
        self.add_layer(p, layer, address(qkv))
        self._team.run(p.build())
        return self.attended.view(np.float32)[: tokens * self.shape.width].reshape(
            tokens, self.shape.width
        )

    def copy(self, pairs: I64) -> None:
        """Copies frames in all layers: `pairs` int64 [n, 2] of (from, to); no frame is twice a target or both."""
        pairs = np.ascontiguousarray(pairs, np.int64)
        p = Program()
        s = self.shape
        p.add(
            program.COPY,
            address(self.pool),
            s.frame_bytes,
            self.layer_bytes,
            s.num_layers,
            address(pairs),
            len(pairs),
        )
        self._team.run(p.build())
