"""Paged attention on the CPU against float64: random, boundary and adversarial steps over a poisoned pool."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels import reference
from kernels.cpu import cache
from kernels.cpu.paged import PagedAttention, PoolShape, scratch_bytes
from kernels.cpu.steps import SPAN
from kernels.cpu.team import Team

F32 = NDArray[np.float32]
LARGEST = PoolShape(
    num_layers=1, num_heads=8, num_kv_heads=1, head_dim=256, block_size=16, num_blocks=1
)


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team(2, scratch_bytes(LARGEST))
    yield team
    team.close()


def rounded(x: F32, kind: int) -> F32:
    """`x` as the pool's format holds it."""
    return torch.from_numpy(x).bfloat16().float().numpy() if kind == cache.BF16 else x


def poisoned(shape: PoolShape, team: Team, rotary: F32 | None = None) -> PagedAttention:
    """A pool of not-a-numbers."""
    paged = PagedAttention(shape, rotary, team)
    paged.pool[:] = 255
    return paged


class Conversation:
    """Sequences of random q, k, v, advanced through a paged pool by steps of any shape."""

    def __init__(
        self, paged: PagedAttention, lengths: list[int], seed: int, magnitude: float = 1.0
    ) -> None:
        self.paged, shape = paged, paged.shape
        rng = np.random.default_rng(seed)
        blocks = [-(-n // shape.block_size) for n in lengths]
        order = rng.permutation(shape.num_blocks)[: sum(blocks)]
        self.tables = np.full((len(lengths), max(blocks)), -1, np.int32)
        self.tables[:] = rng.integers(0, shape.num_blocks, self.tables.shape)
        for row, (end, count) in enumerate(zip(np.cumsum(blocks), blocks, strict=True)):
            self.tables[row, :count] = order[end - count : end]
        self.qkv = [rng.standard_normal((n, shape.qkv_width)).astype(np.float32) for n in lengths]
        for x in self.qkv:
            x[:, : shape.width] *= magnitude

    def step(self, rows: list[int], starts: list[int], counts: list[int]) -> F32:
        """Output of the rows' next positions, [T, width]."""
        qkv = np.concatenate(
            [self.qkv[r][s : s + c] for r, s, c in zip(rows, starts, counts, strict=True)]
        )
        r, s, c = (np.array(x, np.int32) for x in (rows, starts, counts))
        self.paged.fit(s, c)
        self.paged.attended.view(np.float32)[:] = np.nan
        return self.paged.attend(0, qkv, r, s, c, self.tables).copy()

    def check(self, out: F32, row: int, start: int) -> None:
        """Holds a row's output against float64 within the format's bound.

        Float32: scores differ by at most head_dim roundings of their terms, weights by that and the exponential's 2 ulp, sums by a
        rounding a tile; all relative to the largest value. In bf16, weights are rounded once more: 2**-9 of each.
        """
        s = self.paged.shape
        q, k, v = np.split(
            self.qkv[row].reshape(len(self.qkv[row]), -1, s.head_dim),
            [s.num_heads, s.num_heads + s.num_kv_heads],
            1,
        )
        scale = np.float32(s.head_dim**-0.5)
        q = rounded(q[start : start + len(out)] * scale, s.kind)
        k, v = rounded(k, s.kind), rounded(v, s.kind)
        k, v = k[: start + len(out)], v[: start + len(out)]
        expected = reference.attention(q, k, v, start, scale=1.0)
        terms = np.abs(q).sum(-1).max() * np.abs(k).max()
        relative = (
            2 * s.head_dim * 2.0**-24 * terms
            + (len(k) + 16) * 2.0**-24
            + (2.0**-8 if s.kind == cache.BF16 else 0)
        )
        assert np.isfinite(out).all()
        assert np.abs(out - expected.reshape(len(out), -1)).max() <= relative * np.abs(v).max()


@pytest.mark.parametrize("kind", [cache.BF16, cache.FP32], ids=["bf16", "f32"])
@pytest.mark.parametrize("head_dim", cache.HEAD_SIZES)
@pytest.mark.parametrize("block_size", cache.BLOCK_SIZES)
def test_every_head_and_block_size_agrees_with_float64(
    kind: int, head_dim: int, block_size: int, team: Team
) -> None:
    shape = PoolShape(
        num_layers=1,
        num_heads=6,
        num_kv_heads=2,
        head_dim=head_dim,
        block_size=block_size,
        num_blocks=64,
        kind=kind,
    )
    talk = Conversation(poisoned(shape, team), [150, 37, 9], seed=head_dim + block_size)

    prompts = talk.step([0, 1], [0, 0], [149, 30])
    mixed = talk.step([0, 2, 1], [149, 0, 30], [1, 9, 7])

    talk.check(prompts[:149], 0, 0)
    talk.check(mixed[:1], 0, 149)
    talk.check(mixed[1:10], 2, 0)
    talk.check(mixed[10:], 1, 30)


@pytest.mark.parametrize("kind", [cache.BF16, cache.FP32], ids=["bf16", "f32"])
@pytest.mark.parametrize(
    "length", [1, 2, 7, 8, 9, 15, 16, 17, SPAN - 1, SPAN, SPAN + 1, 2 * SPAN + 1]
)
def test_lengths_around_a_subtile_block_and_tile(kind: int, length: int, team: Team) -> None:
    shape = PoolShape(
        num_layers=1,
        num_heads=3,
        num_kv_heads=1,
        head_dim=64,
        block_size=16,
        num_blocks=40,
        kind=kind,
    )
    talk = Conversation(poisoned(shape, team), [length], seed=length)

    if length > 1:
        talk.check(talk.step([0], [0], [length - 1]), 0, 0)
    talk.check(talk.step([0], [length - 1], [1]), 0, length - 1)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 8])
def test_every_number_of_heads_in_a_group(group: int, team: Team) -> None:
    shape = PoolShape(
        num_layers=1, num_heads=2 * group, num_kv_heads=2, head_dim=64, block_size=16, num_blocks=16
    )
    talk = Conversation(poisoned(shape, team), [60], seed=group)

    talk.check(talk.step([0], [0], [59]), 0, 0)
    talk.check(talk.step([0], [59], [1]), 0, 59)


@pytest.mark.parametrize("kind", [cache.BF16, cache.FP32], ids=["bf16", "f32"])
@pytest.mark.parametrize("magnitude", [1e4, 1e8, 1e30])
def test_huge_scores_pick_the_largest_key_and_overflow_nothing(
    kind: int, magnitude: float, team: Team
) -> None:
    shape = PoolShape(
        num_layers=1,
        num_heads=3,
        num_kv_heads=1,
        head_dim=64,
        block_size=16,
        num_blocks=40,
        kind=kind,
    )
    talk = Conversation(poisoned(shape, team), [300], seed=5, magnitude=magnitude)

    out = np.concatenate([talk.step([0], [0], [299]), talk.step([0], [299], [1])]).reshape(
        300, 3, 64
    )

    q, k, v = (rounded(x, kind) for x in np.split(talk.qkv[0].reshape(300, 5, 64), [3, 4], 1))
    scores = np.einsum("thd,kd->thk", q.astype(np.float64), k[:, 0].astype(np.float64)) / 8
    scores[np.broadcast_to(np.arange(300) > np.arange(300)[:, None, None], scores.shape)] = -np.inf
    ordered = np.sort(scores, axis=-1)
    clear = ordered[..., -1] - ordered[..., -2] > 1e-2 * magnitude
    assert clear.mean() > 0.9
    assert np.isfinite(out).all()
    assert np.array_equal(out[clear], v[scores.argmax(-1)[clear], 0])


@pytest.mark.parametrize("magnitude", [0.0, 1e-30])
def test_scores_of_nothing_average_what_is_seen(magnitude: float, team: Team) -> None:
    shape = PoolShape(
        num_layers=1,
        num_heads=3,
        num_kv_heads=1,
        head_dim=64,
        block_size=16,
        num_blocks=40,
        kind=cache.FP32,
    )
    talk = Conversation(poisoned(shape, team), [300], seed=5, magnitude=magnitude)

    talk.check(talk.step([0], [0], [299]), 0, 0)
    talk.check(talk.step([0], [299], [1]), 0, 299)


def test_a_step_without_sequences_gives_nothing(team: Team) -> None:
    shape = PoolShape(
        num_layers=1, num_heads=3, num_kv_heads=1, head_dim=64, block_size=16, num_blocks=4
    )
    empty = np.zeros(0, np.int32)
    out = PagedAttention(shape, None, team).attend(
        0, np.zeros((0, 320), np.float32), empty, empty, empty, np.zeros((1, 1), np.int32)
    )

    assert out.shape == (0, 192)


def test_sequences_may_share_frames_and_repeat_stale_ones(team: Team) -> None:
    shape = PoolShape(
        num_layers=1, num_heads=3, num_kv_heads=1, head_dim=64, block_size=16, num_blocks=12
    )
    talk = Conversation(poisoned(shape, team), [40, 40], seed=3)
    talk.qkv[1][:32] = talk.qkv[0][:32]
    talk.tables[1, :2] = talk.tables[0, :2]
    talk.tables = np.concatenate([talk.tables, np.repeat(talk.tables[:, -1:], 4, axis=1)], axis=1)

    talk.step([0], [0], [32])
    out = talk.step([0, 1], [32, 32], [8, 8])

    talk.check(out[:8], 0, 32)
    talk.check(out[8:], 1, 32)


@given(data=st.data())
def test_a_row_has_the_same_bits_however_its_sequence_was_cut(
    data: st.DataObject, team: Team
) -> None:
    kind = data.draw(st.sampled_from([cache.BF16, cache.FP32]))
    shape = PoolShape(
        num_layers=1,
        num_heads=3,
        num_kv_heads=1,
        head_dim=64,
        block_size=8,
        num_blocks=120,
        kind=kind,
    )
    length = data.draw(st.integers(1, 300))
    talk = Conversation(poisoned(shape, team), [length, 300], seed=length)
    whole = talk.step([0], [0], [length])

    again = poisoned(shape, team)
    talk.paged, pieces, start, other = again, [], 0, 0
    while start < length:
        count = min(data.draw(st.integers(1, 130)), length - start)
        beside = min(data.draw(st.integers(0, 40)), 300 - other)
        rows, starts, counts = (
            ([0, 1], [start, other], [count, beside]) if beside else ([0], [start], [count])
        )
        pieces.append(talk.step(rows, starts, counts)[:count])
        start, other = start + count, other + beside

    assert np.array_equal(np.concatenate(pieces), whole)


@pytest.mark.parametrize("head_dim", cache.HEAD_SIZES)
def test_rotary_positions_are_applied_to_queries_and_keys(head_dim: int, team: Team) -> None:
    positions = np.arange(64)
    half = head_dim // 2
    angles = positions[:, None] * 10000.0 ** (-np.arange(half) / half)
    table = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    shape = PoolShape(
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=head_dim,
        block_size=16,
        num_blocks=4,
        kind=cache.FP32,
    )
    talk = Conversation(poisoned(shape, team, table), [50], seed=1)
    q, k, v = np.split(talk.qkv[0].reshape(50, 4, head_dim), [2, 3], 1)
    expected = reference.attention(
        *(reference.rotate(x, positions[:50], 10000.0) for x in (q, k)), v, 0
    )

    out = np.concatenate([talk.step([0], [0], [20]), talk.step([0], [20], [30])])

    assert (
        np.abs(out.reshape(expected.shape) - expected).max() < 1e-4
    )  # angles are rounded to float32: 2**-24 of each score's terms


def test_copied_frames_hold_the_same_keys_and_values_in_every_layer(team: Team) -> None:
    shape = PoolShape(
        num_layers=3, num_heads=3, num_kv_heads=1, head_dim=64, block_size=16, num_blocks=8
    )
    paged = PagedAttention(shape, None, team)
    paged.pool[:] = np.random.default_rng(0).integers(0, 256, len(paged.pool), np.uint8)
    frames = paged.pool.reshape(3, 8, -1)
    before = frames.copy()

    paged.copy(np.array([[1, 5], [1, 6], [4, 0]]))

    before[:, [5, 6, 0]] = before[:, [1, 1, 4]]
    assert np.array_equal(frames, before)


@pytest.mark.parametrize(
    ("field", "value"), [("block_size", 24), ("head_dim", 72), ("num_kv_heads", 2)]
)
def test_sizes_that_no_kernel_serves_are_refused(field: str, value: int) -> None:
    sizes = {
        "num_layers": 1,
        "num_heads": 3,
        "num_kv_heads": 1,
        "head_dim": 64,
        "block_size": 16,
        "num_blocks": 4,
    }
    with pytest.raises(ValueError, match=str(value)):
        PoolShape(**{**sizes, field: value})
