"""A whole Llama-family step as one program: embedding, layers, head, in 4-bit and 8-bit weights with int8 activations.

Takes raw GGUF blocks and gives logits. One form serves every batch size: each product is exact integer sums with float32
accumulation in a fixed order, and attention is walked in fixed tiles, so a sequence's logits have the same bits whatever shares
its steps and however its prompt was cut. Knows arrays and addresses; knows no plans, no files and no sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Layer:
    """One layer's weights: norms in float32 [hidden], products as raw Q4_1 blocks uint8 [outputs, inputs / 32, 20]."""

    attn_norm: F32
    qkv: Bytes
    o: Bytes
    ffn_norm: F32
    gate_up: Bytes
    down: Bytes


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
            head: the output head likewise; None: the embedding.
            rotary: float32 [positions, head_dim]: a row's cosines, then its sines.
            team: runs the steps; needs `scratch_bytes(shape)` a thread.
        """
        self.shape = shape
        self._team = team
        self._norms = [
            np.ascontiguousarray(w, np.float32)
            for layer in layers
            for w in (layer.attn_norm, layer.ffn_norm)
        ]
        self._norm = np.ascontiguousarray(norm, np.float32)
        raw = [m for layer in layers for m in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        self._arena = _Arena(
            sum(m.nbytes + 128 for m in [*raw, embed, *([] if head is None else [head])])
        )
        self._products = []
        for layer in layers:
            for matrix in (layer.qkv, layer.o, interleave_gate_up(layer.gate_up), layer.down):
                self._products.append(self._place(linear.pack_q4(matrix)))
        self._embed = self._place(linear.pack_q8(embed))
        self._head = self._embed if head is None else self._place(linear.pack_q8(head))
        self._attention = PagedAttention(shape.pool, rotary, team)
        self.frames = self._attention.frames
        self._sampled = 0

    def _place(self, packed: tuple[Bytes, Bytes]) -> tuple[int, int]:
        return self._arena.put(packed[0]), self._arena.put(packed[1])

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
        p.add(
            program.EMBED,
            count,
            address(self._attention.tokens),
            *self._embed,
            groups,
            hidden,
            stride,
        )
        for i in range(pool.num_layers):
            into_qkv, o, gate_up, down = self._products[4 * i : 4 * i + 4]
            attn_norm, ffn_norm = map(address, self._norms[2 * i : 2 * i + 2])
            p.add(program.NORMALISE, count, 0, hidden, stride, attn_norm, epsilon, groups, narrow)
            p.add(
                program.LINEAR,
                count,
                narrow,
                *into_qkv,
                4,
                groups,
                pool.qkv_width // TILE,
                qkv,
                4 * pool.qkv_width,
                0,
            )
            self._attention.add_layer(p, i, qkv, narrow)
            p.add(
                program.LINEAR,
                count,
                narrow,
                *o,
                4,
                pool.width // GROUP,
                s.hidden_size // TILE,
                hidden,
                stride,
                1,
            )
            p.add(program.NORMALISE, count, 0, hidden, stride, ffn_norm, epsilon, groups, narrow)
            p.add(program.GATED, count, narrow, *gate_up, groups, s.ffn_size // GROUP, wide)
            p.add(
                program.LINEAR,
                count,
                wide,
                *down,
                4,
                s.ffn_size // GROUP,
                s.hidden_size // TILE,
                hidden,
                stride,
                1,
            )
        p.add(
            program.NORMALISE,
            chosen,
            address(self._select),
            hidden,
            stride,
            address(self._norm),
            epsilon,
            groups,
            last,
        )
        logits, tiles = address(self._logits), s.vocab_size // TILE
        p.add(
            program.LINEAR, chosen, last, *self._head, 8, groups, tiles, logits, 4 * s.vocab_size, 0
        )
        return p.build()


def scratch_bytes(shape: DecoderShape) -> int:
    """Scratch that a thread of the team needs for this decoder."""
    return max(paged_scratch_bytes(shape.pool), linear.SCRATCH_BYTES)
