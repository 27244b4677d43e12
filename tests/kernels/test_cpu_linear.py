"""Quantised products on the CPU: packing, quantising and tiles against float64, and the same bits in every batch."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels import reference
from kernels.cpu import linear, program
from kernels.cpu.decoder import interleave_gate_up
from kernels.cpu.paged import address
from kernels.cpu.panels import GROUP, RECORD, ROWS, SCALES, panel_bytes
from kernels.cpu.program import float_bits
from kernels.cpu.team import Program, Team, allocate
from kernels.cpu.tiles import TILE

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Bytes = NDArray[np.uint8]


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    team = Team(2, linear.SCRATCH_BYTES)
    yield team
    team.close()


def q4_1(outputs: int, groups: int, seed: int = 0) -> Bytes:
    """Random blocks with scales and minimums of both signs."""
    rng = np.random.default_rng(seed)
    halves = rng.standard_normal((outputs, groups, 2)).astype(np.float16).view(np.uint8)
    return np.concatenate([halves, rng.integers(0, 256, (outputs, groups, 16), np.uint8)], axis=2)


def q8_0(outputs: int, groups: int, seed: int = 0) -> Bytes:
    """Random blocks over all 256 values."""
    rng = np.random.default_rng(seed)
    halves = rng.standard_normal((outputs, groups, 1)).astype(np.float16).view(np.uint8)
    return np.concatenate([halves, rng.integers(0, 256, (outputs, groups, 32), np.uint8)], axis=2)


def aligned(data: Bytes) -> Bytes:
    """A copy at a page's start."""
    copy = allocate(data.nbytes)
    copy[:] = data
    return copy


def poison(num_bytes: int) -> Bytes:
    """Memory full of not-a-numbers."""
    memory = allocate(num_bytes)
    memory[:] = 255
    return memory


def unpack(panel: Bytes, rows: int, groups: int) -> F64:
    """The activations that a panel stands for, [rows, 32 * groups]."""
    records = panel.reshape(-1, groups, RECORD)
    quants = records[..., : ROWS * GROUP].view(np.int8).reshape(-1, groups, ROWS, GROUP)
    scales = np.ascontiguousarray(records[..., SCALES : SCALES + 4 * ROWS]).view(np.float32)
    values = quants.astype(np.float64) * scales[..., None]
    return values.transpose(0, 2, 1, 3).reshape(-1, groups * GROUP)[:rows]


def quantise(x: F32, team: Team) -> Bytes:
    """The panels of x."""
    rows, width = x.shape
    count = np.array([rows], np.int64)
    panel = poison(panel_bytes(rows, width))
    p = Program()
    p.add(
        program.QUANTISE, address(count), address(x), x.strides[0], width // GROUP, address(panel)
    )
    team.run(p.build())
    return panel


def packed(blocks: Bytes) -> tuple[Bytes, Bytes, int]:
    """Weights, extra and bits, aligned."""
    weights, extra, bits = linear.pack(blocks)
    return aligned(weights), aligned(extra), bits


def product(
    x: F32, blocks: Bytes, team: Team, onto: F32 | None = None, bias: F32 | None = None
) -> F32:
    """x @ weights.T + bias through the kernels, added to `onto` if given."""
    weights, extra, bits = packed(blocks)
    rows, outputs = len(x), len(blocks)
    count = np.array([rows], np.int64)
    panel = quantise(x, team)
    out = np.full((rows, outputs), np.nan, np.float32) if onto is None else onto.copy()
    p = Program()
    operands = (
        address(weights),
        address(extra),
        bits,
        x.shape[1] // GROUP,
        outputs // TILE,
        address(out),
        4 * outputs,
    )
    adding = (int(onto is not None), 0 if bias is None else address(bias))
    p.add(program.LINEAR, address(count), address(panel), *operands, *adding)
    team.run(p.build())
    return out


def random_rows(rows: int, width: int, seed: int = 1) -> F32:
    """Activations with an outlier in each row."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    x[np.arange(rows), rng.integers(0, width, rows)] *= 50
    return x


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 33, 257])
def test_quantised_activations_are_within_half_a_step(rows: int, team: Team) -> None:
    x = random_rows(rows, 96)
    x[0, :32] = 0

    got = unpack(quantise(x, team), rows, 3)

    step = np.abs(x.reshape(rows, 3, 32)).max(-1) / 127
    assert (np.abs(got - x).reshape(rows, 3, 32) <= 0.5001 * step[..., None]).all()


@pytest.mark.parametrize("make", [q4_1, q8_0])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9, 31, 258])
@pytest.mark.parametrize(("outputs", "groups"), [(16, 1), (48, 3), (80, 18)])
def test_products_of_quantised_activations_agree_with_float64(
    make: object, rows: int, outputs: int, groups: int, team: Team
) -> None:
    blocks = make(outputs, groups)  # type: ignore[operator]
    x = random_rows(rows, GROUP * groups)
    dequantise = reference.dequantise_q4_1 if make is q4_1 else reference.dequantise_q8_0
    weights, inputs = dequantise(blocks), unpack(quantise(x, team), rows, groups)

    out = product(x, blocks, team)

    # Integer sums are exact; each group adds two multiply-adds of rounded factors: 3 roundings of a partial sum's size, each.
    bound = (
        2.0**-24
        * (6 * groups + 4)
        * (np.abs(inputs) @ np.abs(weights).T + np.abs(inputs).sum(1, keepdims=True) * 128)
    )
    assert (np.abs(out - inputs @ weights.T) <= bound).all()


@given(rows=st.integers(1, 40), row=st.integers(0, 39), seed=st.integers(0, 99))
def test_a_row_has_the_same_bits_in_every_batch(rows: int, row: int, seed: int, team: Team) -> None:
    row %= rows
    x = random_rows(rows, 96, seed)
    for blocks in (q4_1(48, 3), q8_0(48, 3)):
        assert np.array_equal(
            product(x, blocks, team)[row], product(x[row : row + 1], blocks, team)[0]
        )


def test_a_product_can_be_added_to_what_is_there(team: Team) -> None:
    x, there = random_rows(5, 96), random_rows(5, 48, seed=2)
    blocks = q4_1(48, 3)

    assert np.array_equal(product(x, blocks, team, onto=there), there + product(x, blocks, team))


def test_a_bias_is_added_before_what_is_there(team: Team) -> None:
    x, there, bias = random_rows(9, 96), random_rows(9, 48, seed=2), random_rows(1, 48, seed=3)[0]
    blocks = q8_0(48, 3)
    plain = product(x, blocks, team)

    assert np.array_equal(product(x, blocks, team, bias=bias), plain + bias)
    assert np.array_equal(product(x, blocks, team, there, bias), (plain + bias) + there)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_stays_visible_and_harms_no_other(bad: float, team: Team) -> None:
    x = random_rows(9, 96)
    whole = product(x, q4_1(48, 3), team)
    x[3, 40] = bad

    out = product(x, q4_1(48, 3), team)

    assert np.isnan(out[3]).all()
    assert np.array_equal(np.delete(out, 3, 0), np.delete(whole, 3, 0))


@pytest.mark.parametrize("rows", [1, 6, 20])
def test_norm_then_quantise_agrees_with_float64(rows: int, team: Team) -> None:
    x, weight = random_rows(40, 96), random_rows(1, 96, seed=3)[0]
    chosen = np.random.default_rng(0).permutation(40)[:rows].astype(np.int64)
    count, panel = np.array([rows], np.int64), poison(panel_bytes(rows, 96))
    p = Program()
    p.add(
        program.NORMALISE, address(count), address(chosen), address(x), x.strides[0], address(weight), float_bits(1e-5), 3,
        address(panel),
    )  # fmt: skip
    team.run(p.build())
    expected = reference.rms_norm(x[chosen], weight, 1e-5)

    step = np.abs(expected.reshape(rows, 3, 32)).max(-1) / 127
    error = np.abs(unpack(panel, rows, 3) - expected).reshape(rows, 3, 32)
    assert (error <= 0.501 * step[..., None]).all()


@pytest.mark.parametrize("make", [q4_1, q8_0])
@pytest.mark.parametrize("rows", [1, 5, 8, 19])
def test_gated_products_agree_with_float64(make: object, rows: int, team: Team) -> None:
    blocks = make(128, 3)  # type: ignore[operator]
    weights, extra, bits = packed(interleave_gate_up(blocks))
    x = random_rows(rows, 96) / (64 if bits == 4 else 1024)
    panel = quantise(x, team)
    count, out = np.array([rows], np.int64), poison(panel_bytes(rows, 64))
    p = Program()
    operands = (address(panel), address(weights), address(extra), bits, 3, 2, address(out))
    p.add(program.GATED, address(count), *operands)
    team.run(p.build())
    dequantise = reference.dequantise_q4_1 if bits == 4 else reference.dequantise_q8_0
    gate, up = np.split(unpack(panel, rows, 3) @ dequantise(blocks).T, 2, axis=1)
    expected = reference.swiglu(gate, up)

    step = np.abs(expected.reshape(rows, 2, 32)).max(-1) / 127
    assert (
        np.abs(unpack(out, rows, 2) - expected).reshape(rows, 2, 32) <= 0.51 * step[..., None]
    ).all()


def test_embedding_rows_are_exactly_scale_times_byte(team: Team) -> None:
    blocks = q8_0(64, 3)
    weights, extra = map(aligned, linear.pack_q8(blocks))
    tokens = np.zeros((64, 4), np.int64)
    tokens[:, 0] = np.random.default_rng(0).permutation(64)
    count, out = np.array([64], np.int64), np.full((64, 96), np.nan, np.float32)
    p = Program()
    p.add(
        program.EMBED,
        address(count),
        address(tokens),
        address(weights),
        address(extra),
        3,
        address(out),
        4 * 96,
    )
    team.run(p.build())

    assert np.array_equal(out, reference.dequantise_q8_0(blocks)[tokens[:, 0]].astype(np.float32))


@pytest.mark.parametrize(
    ("pack", "shape"), [(linear.pack_q4, (16, 2, 18)), (linear.pack_q8, (24, 2, 34))]
)
def test_blocks_of_another_kind_or_size_are_refused(pack: object, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"Q[48]_[01]"):
        pack(np.zeros(shape, np.uint8))  # type: ignore[operator]
