"""Cache kernels: the right bytes at the right places, and no others."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cache.blocks import copy_blocks, gather_blocks, scatter_blocks
from kernels.cache.swap import HostPool
from kernels.cache.table import apply_delta, last_changes
from kernels.cache.write import rotation_table, write_kv
from kernels.fp8 import decode_e4m3, encode_e4m3
from kernels.layout import E4M3, KVCache
from tests.kernels.device import DEVICE, ints

ULPS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""A rounding of a number below 1 in each dtype, doubled."""


@triton.jit
def encode_kernel(x_ptr, out_ptr, n, C: tl.constexpr):
    i = tl.program_id(0) * C + tl.arange(0, C)
    tl.store(out_ptr + i, encode_e4m3(tl.load(x_ptr + i, mask=i < n, other=0.0)), mask=i < n)


@triton.jit
def decode_kernel(byte_ptr, out_ptr, C: tl.constexpr):
    i = tl.arange(0, C)
    tl.store(out_ptr + i, decode_e4m3(tl.load(byte_ptr + i)))


def encoded(x: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, 0xAA, dtype=torch.uint8)
    encode_kernel[(triton.cdiv(len(x), 4096),)](x, out, len(x), C=4096)
    return out


def test_every_e4m3_byte_decodes_to_its_value():
    every = torch.arange(256, dtype=torch.uint8)
    out = torch.empty(256, dtype=torch.float16, device=DEVICE)
    decode_kernel[(1,)](every.to(DEVICE), out, C=256)
    want = every.view(E4M3).float()
    number = ~want.isnan()
    assert torch.equal(out.cpu().float()[number], want[number])


def test_e4m3_bytes_are_rounded_as_torch_rounds_them():
    every = torch.arange(256, dtype=torch.uint8).view(E4M3).float()
    every = every[every.isfinite()].double()
    halfway = (every[1:] + every[:-1]) / 2
    edges = torch.cat([every, halfway, halfway * (1 + 2e-7), halfway * (1 - 2e-7)])
    rng = np.random.default_rng(0)
    magnitudes = 2.0 ** rng.uniform(-14, 8.8, 20_000)
    random = torch.from_numpy(magnitudes * rng.choice([-1, 1], 20_000))
    x = torch.cat([edges, random]).float()
    x = x[x.abs() <= 448]
    got = encoded(x.to(DEVICE)).cpu()
    assert torch.equal(got, x.to(E4M3).view(torch.uint8))


def test_numbers_beyond_e4m3_are_clamped_and_nan_stays():
    x = torch.tensor([449.0, 1e30, float("inf"), -1e5, float("-inf"), float("nan"), 0.0, -0.0])
    got = encoded(x.to(DEVICE)).cpu().view(E4M3).float()
    assert got[:5].tolist() == [448, 448, 448, -448, -448]
    assert got[5].isnan()
    assert got[6:].tolist() == [0, 0]


def rotated(x: torch.Tensor, positions: list[int], theta: float) -> torch.Tensor:
    """RoFormer in complex numbers, float64."""
    half = x.shape[-1] // 2
    angle = torch.tensor(positions)[:, None] * theta ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    turned = (
        torch.complex(*x.double().split(half, -1))
        * torch.polar(torch.ones_like(angle), angle)[:, None]
    )
    return torch.cat([turned.real, turned.imag], -1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("head_dim", "block_size"), [(64, 16), (80, 8), (96, 32), (128, 256), (256, 64)]
)
def test_keys_are_rotated_and_land_in_their_slots_alone(dtype, head_dim, block_size):
    rng = torch.Generator().manual_seed(head_dim)
    tokens, heads, kv_heads, blocks = 19, 3, 2, 5
    qkv = torch.rand(tokens, heads + 2 * kv_heads, head_dim, generator=rng).sub(0.5).to(dtype)
    positions = torch.randint(0, 900, (tokens,), generator=rng).tolist()
    slots = torch.randperm(blocks * block_size, generator=rng)[:tokens].tolist()
    slots[3] = slots[18] = -1
    poison = torch.full((blocks, kv_heads, block_size, head_dim), float("nan"), dtype=dtype)
    cache = KVCache(poison.to(DEVICE), poison.clone().to(DEVICE))
    fused = qkv.clone().to(DEVICE)
    q, k, v = fused.split([heads, kv_heads, kv_heads], 1)

    write_kv(
        q, k, v, cache, ints(slots), ints(positions), rotation_table(900, head_dim, 1e4).to(DEVICE)
    )

    want_q, want_k = (
        rotated(x, positions, 1e4) for x in (qkv[:, :heads], qkv[:, heads : heads + kv_heads])
    )
    assert (q.cpu().double() - want_q).abs().max() < ULPS[dtype]
    assert torch.equal(fused[:, heads:].cpu(), qkv[:, heads:])
    for pool, want in ((cache.k, want_k), (cache.v, qkv[:, heads + kv_heads :].double())):
        flat = pool.cpu().transpose(1, 2).reshape(-1, kv_heads, head_dim)
        for token, slot in enumerate(slots):
            if slot >= 0:
                assert (flat[slot].double() - want[token]).abs().max() < ULPS[dtype]
        flat[[s for s in slots if s >= 0]] = float("nan")
        assert flat.isnan().all()


def test_e4m3_caches_are_written_in_units_of_each_heads_scale():
    tokens, kv_heads, head_dim = 5, 2, 64
    rng = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(tokens, n, head_dim, generator=rng, dtype=torch.float32).to(DEVICE)
        for n in (2, kv_heads, kv_heads)
    )
    scales = torch.tensor([[0.5, 0.004], [2.0, 0.25]], device=DEVICE)
    pools = [torch.zeros(2, kv_heads, 8, head_dim, dtype=E4M3, device=DEVICE) for _ in "kv"]
    plain = k.clone()

    write_kv(
        q,
        k,
        v,
        KVCache(*pools, *scales),
        ints(range(3, 8)),
        ints([0] * 5),
        rotation_table(1, head_dim, 1e4).to(DEVICE),
    )

    for pool, x, scale in zip(pools, (plain, v), scales, strict=True):
        want = (x / scale[:, None]).clamp(-448, 448).to(E4M3).view(torch.uint8)
        assert torch.equal(pool.view(torch.uint8)[0].transpose(0, 1)[3:].cpu(), want.cpu())


@pytest.mark.parametrize("dtype", [torch.float16, E4M3, torch.float32])
def test_copies_move_whole_blocks_of_every_plane(dtype):
    pool = (
        torch.randint(0, 255, (4, 9, 2, 8, 80 * dtype.itemsize), dtype=torch.uint8)
        .view(dtype)
        .to(DEVICE)
    )
    before = pool.view(torch.uint8).clone()
    copy_blocks(pool, ints([4, 0, -1, 4, 5, -1]), ints([7, 2, 3, 1, -1, -1]))
    want = before.clone()
    want[:, [7, 2, 1]] = before[:, [4, 0, 4]]
    assert torch.equal(pool.view(torch.uint8), want)


def test_gathered_blocks_scatter_back_elsewhere():
    pool = torch.randn(6, 10, 2, 16, 64, device=DEVICE)
    before = pool.clone()
    staging = torch.full((3, 6, 2, 16, 64), float("nan"), device=DEVICE)
    gather_blocks(staging, pool, ints([8, 1, 5]))
    assert torch.equal(staging, before[:, [8, 1, 5]].transpose(0, 1))
    scatter_blocks(pool, staging, ints([0, 9, 2]))
    before[:, [0, 9, 2]] = staging.transpose(0, 1)
    assert torch.equal(pool, before)


def test_moving_no_blocks_does_nothing():
    pool = torch.randn(2, 3, 1, 8, 64, device=DEVICE)
    before = pool.clone()
    copy_blocks(pool, ints([]), ints([]))
    assert torch.equal(pool, before)


def test_blocks_of_other_sizes_are_refused():
    with pytest.raises(ValueError, match="differ"):
        gather_blocks(torch.zeros(1, 2, 8, 64), torch.zeros(2, 3, 16, 64), ints([0]))


changes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8), st.integers(0, 99)), max_size=40)


@settings(max_examples=30)
@given(changes=changes)
def test_a_delta_leaves_what_assignment_in_order_leaves(changes):
    table = np.full((6, 9), -1, np.int32)
    device = ints(table)
    rows, columns, blocks = np.array(changes, np.int32).reshape(-1, 3).T
    apply_delta(device, torch.from_numpy(last_changes(rows, columns, blocks)).to(DEVICE))
    for row, column, block in changes:
        table[row, column] = block
    assert np.array_equal(device.cpu().numpy(), table)


def test_swapped_blocks_come_back_elsewhere_whole():
    pool = torch.randn(4, 12, 2, 8, 64, device=DEVICE)
    before = pool.clone()
    host = HostPool(pool, 9, staged_blocks=3)
    frames, hosts = np.array([7, 0, 3, 11, 5], np.int32), np.array([8, 2, 0, 5, 1], np.int32)
    host.swap_out(frames, hosts).wait()
    assert torch.equal(
        host.blocks[hosts.tolist()], before[:, frames.tolist()].transpose(0, 1).cpu()
    )
    pool.fill_(float("nan"))
    elsewhere = np.array([1, 2, 4, 6, 10], np.int32)
    back = host.swap_in(elsewhere, hosts)
    back.wait()
    assert back.done()
    assert torch.equal(pool[:, elsewhere.tolist()], before[:, frames.tolist()])
    others = [i for i in range(12) if i not in elsewhere]
    assert pool[:, others].isnan().all()


@pytest.mark.parametrize(("sources", "targets"), [([0, 5], [3, 1]), ([0, 3, 3], [3, 4, 0])])
def test_copies_leave_what_copying_in_order_leaves(sources, targets):
    pool = torch.randn(2, 6, 1, 8, 64, device=DEVICE)
    want = pool.clone()
    for source, target in zip(sources, targets, strict=True):
        want[:, target] = want[:, source]
    HostPool(pool, 0).copy(np.array(sources, np.int32), np.array(targets, np.int32))
    assert torch.equal(pool, want)
