"""A whole Llama-family step as one program: embedding, layers, head, in 4-bit and 8-bit weights with int8 activations.

Takes raw GGUF blocks and gives logits. One form serves every batch size: each product is exact integer sums with float32
accumulation in a fixed order, and attention is walked in fixed tiles, so a sequence's logits have the same bits whatever shares
its steps and however its prompt was cut. Knows arrays and addresses; knows no plans, no files and no sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernels.cpu import linear, program, steps
from kernels.cpu.linear import Bytes
from kernels.cpu.paged import F32, I32, I64, PagedAttention, PoolShape, address
from kernels.cpu.paged import scratch_bytes as paged_scratch_bytes
from kernels.cpu.panels import GROUP, panel_bytes
from kernels.cpu.program import float_bits
from kernels.cpu.team import Program, Team, allocate
from kernels.cpu.tiles import TILE


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """Sizes and constants of the decoder."""

    vocab_size: int
    hidden_size: int
    ffn_size: int
    norm_eps: float
    pool: PoolShape


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer's weights: norms and biases in float32, products as raw blocks uint8 [outputs, inputs / 32, 20 (Q4_1) or 34 (Q8_0)]."""

    attn_norm: F32
    qkv: Bytes
    """Rows of Q, K, V."""
    o: Bytes
    ffn_norm: F32
    gate_up: Bytes
    """Rows of gate, then up."""
    down: Bytes
    qkv_bias: F32 | None = None
    o_bias: F32 | None = None


class _Product(NamedTuple):
    """A packed weight: addresses, bits, and the address of its bias (0: none)."""

    weights: int
    extra: int
    bits: int
    bias: int


class _Arena:
    """Packed weights in one stretch of memory, in the order that a step reads them."""

    def __init__(self, num_bytes: int) -> None:
        self._memory = allocate(num_bytes)
        self._used = 0

    def put(self, packed: Bytes) -> int:
        """Copies and returns the address, a multiple of 64."""
        start = self._used
        self._used = start + -(-packed.nbytes // 64) * 64
        self._memory[start : start + packed.nbytes] = packed
        return int(self._memory.ctypes.data) + start


def interleave_gate_up(gate_up: Bytes) -> Bytes:
    """Rows of gate, then up, to 32 of gate, 32 of up, and so on: the order of `linear.gated_part`."""
    half = len(gate_up) // 2
    pairs = gate_up.reshape(2, half // GROUP, GROUP, *gate_up.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(0, 1)).reshape(gate_up.shape)


class Decoder:
    """The program of a model over its own pool, and the memory it works on."""

    def __init__(
        self,
        shape: DecoderShape,
        layers: Sequence[Layer],
        norm: F32,
        embed: Bytes,
        head: Bytes | None,
        rotary: F32,
        team: Team,
    ) -> None:
        """Packs the weights.

        Args:
            shape: sizes.
            layers: weights of each layer.
            norm: the last norm's weight, float32 [hidden].
            embed: raw Q8_0 blocks uint8 [vocabulary, hidden / 32, 34].
            head: the output head, raw blocks of either kind; None: the embedding.
            rotary: float32 [positions, head_dim]: a row's cosines, then its sines.
            team: runs the steps; needs `scratch_bytes(shape)` a thread.
        """
        self.shape = shape
        self._team = team
        self._vectors: list[F32] = []
        raw = [m for layer in layers for m in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        raw += [embed] if head is None else [embed, head]
        self._arena = _Arena(sum(m.nbytes + 128 for m in raw))
        self._layers = [
            (
                self._vector(layer.attn_norm),
                self._place(layer.qkv, layer.qkv_bias),
                self._place(layer.o, layer.o_bias),
                self._vector(layer.ffn_norm),
                self._place(interleave_gate_up(layer.gate_up)),
                self._place(layer.down),
            )
            for layer in layers
        ]
        self._norm = self._vector(norm)
        self._embed = self._place(embed)
        self._head = self._embed if head is None else self._place(head)
        self._attention = PagedAttention(shape.pool, rotary, team)
        self.frames = self._attention.frames
        self._sampled = 0

    def _vector(self, values: F32) -> int:
        """Keeps a vector and returns its address."""
        self._vectors.append(np.ascontiguousarray(values, np.float32))
        return address(self._vectors[-1])

    def _place(self, blocks: Bytes, bias: F32 | None = None) -> _Product:
        weights, extra, bits = linear.pack(blocks)
        there = 0 if bias is None else self._vector(bias)
        return _Product(self._arena.put(weights), self._arena.put(extra), bits, there)

    def forward(
        self, ids: I64, rows: I32, starts: I32, counts: I32, tables: I32, sampled: I64
    ) -> F32:
        """Logits float32 [len(sampled), vocabulary] of token rows `sampled`; writes K and V of all; valid until the next call.

        Args:
            ids: [T] token ids, sequence after sequence.
            rows: [R] each sequence's row of `tables`.
            starts: [R] its first new position.
            counts: [R] its new positions, at least 1.
            tables: [rows, columns] block tables, C-contiguous.
            sampled: [S] which token rows.
        """
        moved = self._attention.fit(starts, counts)
        if moved or len(sampled) > self._sampled:
            self._sampled = max(len(sampled), self._sampled, 8)
            self._program = self._build()
        self._attention.begin(rows, starts, counts, tables)
        self._attention.tokens[: len(ids), steps.TOKEN] = ids
        self._attention.header[steps.SAMPLED] = len(sampled)
        self._select[: len(sampled)] = sampled
        self._team.run(self._program)
        return self._logits[: len(sampled)]

    def _build(self) -> I64:
        s, rows = self.shape, self._attention.max_tokens
        pool = s.pool
        self._select = np.zeros(self._sampled, np.int64)
        self._logits = np.zeros((self._sampled, s.vocab_size), np.float32)
        self._buffers = [
            allocate(size)
            for size in (
                4 * rows * s.hidden_size,
                4 * rows * pool.qkv_width,
                panel_bytes(rows, max(s.hidden_size, pool.width)),
                panel_bytes(rows, s.ffn_size),
                panel_bytes(self._sampled, s.hidden_size),
            )
        ]
        hidden, qkv, narrow, wide, last = (address(buffer) for buffer in self._buffers)
        header = address(self._attention.header)
        count, chosen = header + 8 * steps.ROWS, header + 8 * steps.SAMPLED
        epsilon = float_bits(s.norm_eps)
        groups, stride = s.hidden_size // GROUP, 4 * s.hidden_size
        p = Program()
        self._attention.add_prepare(p)
        tokens = address(self._attention.tokens)
        table, extra = self._embed.weights, self._embed.extra
        p.add(program.EMBED, count, tokens, table, extra, groups, hidden, stride)

        def norm(rows: int, chosen: int, weight: int, panel: int) -> None:
            p.add(program.NORMALISE, rows, chosen, hidden, stride, weight, epsilon, groups, panel)

        def multiply(
            rows: int, panel: int, w: _Product, size: tuple[int, int], out: int, add: bool
        ) -> None:
            shape = (size[0] // GROUP, size[1] // TILE)
            p.add(program.LINEAR, rows, panel, *w[:3], *shape, out, 4 * size[1], int(add), w.bias)

        for i, (attn_norm, into_qkv, o, ffn_norm, gate_up, down) in enumerate(self._layers):
            norm(count, 0, attn_norm, narrow)
            multiply(count, narrow, into_qkv, (s.hidden_size, pool.qkv_width), qkv, False)
            self._attention.add_layer(p, i, qkv, narrow)
            multiply(count, narrow, o, (pool.width, s.hidden_size), hidden, True)
            norm(count, 0, ffn_norm, narrow)
            p.add(program.GATED, count, narrow, *gate_up[:3], groups, s.ffn_size // GROUP, wide)
            multiply(count, wide, down, (s.ffn_size, s.hidden_size), hidden, True)
        norm(chosen, address(self._select), self._norm, last)
        multiply(
            chosen, last, self._head, (s.hidden_size, s.vocab_size), address(self._logits), False
        )
        return p.build()


def scratch_bytes(shape: DecoderShape) -> int:
    """Scratch that a thread of the team needs for this decoder."""
    return max(paged_scratch_bytes(shape.pool), linear.SCRATCH_BYTES)
