"""A small random decoder on the CPU against float64, and independence of its sequences from each other."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels import reference
from kernels.cpu.decoder import Decoder, DecoderShape, Layer, scratch_bytes
from kernels.cpu.paged import PoolShape
from kernels.cpu.team import Team

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Bytes = NDArray[np.uint8]

VOCAB, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 96, 128, 192, 6, 2, 32, 3
THETA, EPSILON = 1000.0, 1e-5
BROKEN = 77
"""A token whose embedding is not a number."""

NEAR = 0.05
"""Root of the mean squared error of logits, relative to their spread. Activations are rounded to 8 bits of each group of 32
(an error of 0.3 % of a group's largest, uniformly), K, V and queries to bf16 (0.2 %); 22 such roundings in a row add up as
their squares do: 0.3 % * sqrt(22) = 1.4 %, times what the weights make of it. Seen: 0.9 to 2.9 %."""


def blocks(kind: int, outputs: int, inputs: int, rng: np.random.Generator) -> Bytes:
    """Random weights of unit gain as raw blocks of 20 (Q4_1) or 34 (Q8_0) bytes."""
    groups = inputs // 32
    spread = rng.uniform(0.5, 1.5, (outputs, groups, 1)) / inputs**0.5
    if kind == 20:
        halves = np.concatenate([spread / 4.6, -7.5 / 4.6 * spread], axis=2).astype(np.float16)
        quants = rng.integers(0, 256, (outputs, groups, 16), np.uint8)
    else:
        halves = (spread / 73).astype(np.float16)
        quants = rng.integers(0, 256, (outputs, groups, 32), np.uint8)
    return np.concatenate([halves.view(np.uint8), quants], axis=2)


def product(x: F64, raw: Bytes, bias: F32 | None = None) -> F64:
    """x @ weights.T + bias in float64, of raw blocks of either kind."""
    dequantise = reference.dequantise_q4_1 if raw.shape[2] == 20 else reference.dequantise_q8_0
    return x @ dequantise(raw).T + (0 if bias is None else bias)


class Tiny:
    """Weights, the decoder under test, and the same model in float64."""

    def __init__(self, team: Team, kind: int = 20, biases: bool = False) -> None:
        rng = np.random.default_rng(0)
        width = HEADS * HEAD_DIM
        qkv = (HEADS + 2 * KV_HEADS) * HEAD_DIM
        self.layers = [
            Layer(
                attn_norm=rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32),
                qkv=blocks(kind, qkv, HIDDEN, rng),
                o=blocks(kind, HIDDEN, width, rng),
                ffn_norm=rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32),
                gate_up=blocks(kind, 2 * FFN, HIDDEN, rng),
                down=blocks(kind, HIDDEN, FFN, rng),
                qkv_bias=rng.standard_normal(qkv).astype(np.float32) if biases else None,
                o_bias=rng.standard_normal(HIDDEN).astype(np.float32) if biases else None,
            )
            for _ in range(LAYERS)
        ]
        self.norm = rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
        self.embed = blocks(34, VOCAB, HIDDEN, rng)
        self.embed[BROKEN, :, :2] = np.array([np.nan], np.float16).view(np.uint8)
        self.head = blocks(34, VOCAB, HIDDEN, rng)
        angles = np.arange(256)[:, None] * THETA ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
        rotary = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        self.decoder = Decoder(
            tiny_shape(8, 64),
            self.layers,
            self.norm,
            self.embed,
            self.head,
            rotary,
            team,
        )

    def exact(self, ids: NDArray[np.int64]) -> F64:
        """Logits after each of `ids`, in float64."""
        x = reference.dequantise_q8_0(self.embed)[ids]
        for layer in self.layers:
            y = product(reference.rms_norm(x, layer.attn_norm, EPSILON), layer.qkv, layer.qkv_bias)
            q, k, v = np.split(y.reshape(len(ids), -1, HEAD_DIM), [HEADS, HEADS + KV_HEADS], 1)
            q, k = (reference.rotate(heads, np.arange(len(ids)), THETA) for heads in (q, k))
            y = reference.attention(q, k, v, 0).reshape(len(ids), -1)
            x = x + product(y, layer.o, layer.o_bias)
            y = product(reference.rms_norm(x, layer.ffn_norm, EPSILON), layer.gate_up)
            x = x + product(reference.swiglu(*np.split(y, 2, 1)), layer.down)
        return product(reference.rms_norm(x, self.norm, EPSILON), self.head)

    def step(
        self, tables: NDArray[np.int32], parts: list[tuple[int, int, NDArray[np.int64]]]
    ) -> list[F32]:
        """Logits after each id of each part (row, start, ids)."""
        ids = np.concatenate([p[2] for p in parts])
        rows, starts, counts = (
            np.array(c, np.int32)
            for c in ([p[0] for p in parts], [p[1] for p in parts], [len(p[2]) for p in parts])
        )
        logits = self.decoder.forward(ids, rows, starts, counts, tables, np.arange(len(ids))).copy()
        return np.split(logits, np.cumsum(counts)[:-1])


def tiny_shape(block_size: int, num_blocks: int) -> DecoderShape:
    pool = PoolShape(
        num_layers=LAYERS,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        block_size=block_size,
        num_blocks=num_blocks,
    )
    return DecoderShape(
        vocab_size=VOCAB, hidden_size=HIDDEN, ffn_size=FFN, norm_eps=EPSILON, pool=pool
    )


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team(2, scratch_bytes(tiny_shape(8, 1)))
    yield team
    team.close()


@pytest.fixture(scope="module")
def tiny(team: Team) -> Tiny:
    return Tiny(team)


def some_ids(count: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, BROKEN, count)


def tables_of(rows: int, columns: int, seed: int = 0) -> NDArray[np.int32]:
    return (
        np.random.default_rng(seed)
        .permutation(64)[: rows * columns]
        .reshape(rows, columns)
        .astype(np.int32)
    )


@pytest.mark.parametrize("kind", [20, 34], ids=["Q4_1", "Q8_0"])
@pytest.mark.parametrize("biases", [False, True], ids=["plain", "biases"])
def test_logits_are_near_the_float64_model(kind: int, biases: bool, team: Team) -> None:
    tiny, ids = Tiny(team, kind, biases), some_ids(150)
    exact = tiny.exact(ids)

    (logits,) = tiny.step(tables_of(1, 20), [(0, 0, ids)])

    assert np.sqrt(((logits - exact) ** 2).mean()) < NEAR * exact.std()


@given(lengths=st.lists(st.integers(1, 150), min_size=1, max_size=3), seed=st.integers(0, 999))
def test_logits_have_the_same_bits_in_every_batch_and_chunking(
    lengths: list[int], seed: int, tiny: Tiny
) -> None:
    rng = np.random.default_rng(seed)
    ids = [some_ids(length, seed) for length in lengths]
    tables = tables_of(len(ids), 20, seed)
    alone = [tiny.step(tables, [(row, 0, own)])[0] for row, own in enumerate(ids)]

    done = [0] * len(ids)
    pieces: list[list[F32]] = [[] for _ in ids]
    while any(d < len(own) for d, own in zip(done, ids, strict=True)):
        parts = []
        for row in rng.permutation(len(ids)).tolist():
            count = min(int(rng.choice([0, 1, 1, 2, 9, 70])), len(ids[row]) - done[row])
            if count:
                parts.append((row, done[row], ids[row][done[row] : done[row] + count]))
                done[row] += count
        if parts:
            for (row, _, _), logits in zip(parts, tiny.step(tables, parts), strict=True):
                pieces[row].append(logits)

    for own, together in zip(alone, pieces, strict=True):
        assert np.array_equal(np.concatenate(together), own)


@pytest.mark.parametrize("threads", [1, 3])
def test_logits_have_the_same_bits_for_any_number_of_threads(threads: int, tiny: Tiny) -> None:
    ids, tables = some_ids(40), tables_of(1, 5)
    team = Team(threads, scratch_bytes(tiny_shape(8, 1)))
    other = Tiny(team)

    assert np.array_equal(other.step(tables, [(0, 0, ids)])[0], tiny.step(tables, [(0, 0, ids)])[0])
    team.close()


def test_a_sequence_that_is_not_finite_harms_neither_neighbours_nor_the_next_owner_of_its_frames(
    tiny: Tiny,
) -> None:
    good, bad, tables = some_ids(45), np.array([3, BROKEN, 5] * 15), tables_of(2, 6)
    (alone,) = tiny.step(tables, [(0, 0, good)])

    beside, broken = tiny.step(tables, [(0, 0, good), (1, 0, bad)])
    after_prompt, after = (
        tiny.step(tables, [(1, s, good[s:e])])[0] for s, e in ((0, 44), (44, 45))
    )

    assert np.isnan(broken[1:]).all()
    assert np.array_equal(beside, alone)
    assert np.array_equal(np.concatenate([after_prompt, after]), alone)
