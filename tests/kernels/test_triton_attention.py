"""The traversal against float64, under Triton's interpreter (natively by `make gpu`).

Tolerances are of the largest output: fp32 1e-5 (sums of a few hundred products); fp16 and bf16 two units in the last place of the
result, plus as much again for probabilities rounded to the operand's dtype (fp16: 2e-3, bf16: 1.6e-2).
"""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kernels.attention import rules
from tests.kernels.paged_scene import Scene, expected, make_scene, run

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def causal(s: np.ndarray, q_pos: int, k_pos: np.ndarray, head: int, seq: int) -> np.ndarray:
    return np.where(k_pos <= q_pos, s, -np.inf)


def assert_close(got: torch.Tensor, want: np.ndarray) -> None:
    assert got.isfinite().all()
    error = np.abs(got.double().numpy() - want).max(initial=0.0)
    assert error <= TOLERANCE[got.dtype] * max(1.0, np.abs(want).max(initial=0.0))


def check_causal(scene: Scene, **options) -> None:
    assert_close(run(scene, rules.causal(), **options), expected(scene, causal))


@triton.jit
def future_score(s, q_pos, k_pos, head, seq, args):
    return tl.where(k_pos > q_pos + 20, s, float("-inf"))


MIXED = [(1, 70), (20, 33), (1, 1), (13, 90)]


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128, 256])
def test_every_block_size_reads_the_right_slots(block_size):
    check_causal(make_scene([(1, 300), (5, 41)], block_size=block_size))


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_head_size_gives_the_reference(head_dim):
    check_causal(make_scene(MIXED, head_dim=head_dim, kv_heads=1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_dtype_gives_the_reference(dtype):
    check_causal(make_scene(MIXED, dtype=dtype))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 8, 16])
def test_query_heads_of_one_kv_head_share_a_tile(group):
    check_causal(make_scene(MIXED, group=group))


@pytest.mark.parametrize("kv_len", [1, 15, 16, 17, 31, 32, 33, 63, 64, 65])
def test_lengths_around_a_block_and_around_a_tile(kv_len):
    check_causal(make_scene([(1, kv_len), (min(kv_len, 9), kv_len)]))


def test_one_key_over_a_share_is_read_by_the_next_share():
    for kv_len in (63, 64, 65, 128, 129):
        check_causal(make_scene([(1, kv_len), (3, 5)]), force_share=2)


def test_shares_of_sequences_too_short_for_them_take_no_part():
    check_causal(make_scene([(1, 200), (1, 1), (1, 33)]), force_share=1)


def test_chunks_may_be_split_too():
    check_causal(make_scene([(30, 150), (17, 17)]), force_share=1)


def test_sequences_without_queries_leave_others_untouched():
    check_causal(make_scene([(0, 0), (1, 20), (0, 40), (12, 12)]))


def test_a_batch_without_queries_launches_nothing():
    scene = make_scene([(0, 0), (0, 7)])
    assert run(scene, rules.causal()).shape[0] == 0


def test_blocks_shared_by_sequences_are_read_by_each():
    check_causal(make_scene([(1, 70), (4, 50), (1, 48)], shared_blocks=2))


def test_a_block_that_a_table_names_twice_is_read_twice():
    scene = make_scene([(1, 75), (6, 30)])
    for row in scene.batch.rows:
        scene.table[row, :4] = scene.table[scene.batch.rows[0], 1]
    check_causal(scene)
    check_causal(scene, force_share=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_large_logits_do_not_overflow(dtype):
    scene = make_scene([(1, 90), (10, 40)], dtype=dtype, magnitude=30.0)
    check_causal(scene, force_share=1)


def test_rows_that_see_no_key_are_zero():
    def future_only(s, q_pos, k_pos, head, seq):
        return np.where(k_pos > q_pos + 20, s, -np.inf)

    scene = make_scene([(30, 40), (1, 9)])
    window = rules.Rule(rules.everything_span, future_score, rules.no_start, ())
    for share in (None, 1):
        got = run(scene, window, force_share=share)
        assert_close(got, expected(scene, future_only))
        assert (got[-1] == 0).all()


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_e4m3_keys_and_values_are_read_with_their_heads_scales(dtype, capability):
    scene = make_scene([(1, 70), (9, 33)], dtype=dtype, fp8=True)
    check_causal(scene, capability=capability, force_share=2)


def test_the_contiguous_build_gives_the_paged_builds_bits():
    paged = make_scene([(1, 70), (9, 33), (1, 16)])
    rows, capacity = paged.table.shape[0], 96
    shape = (rows, paged.k.shape[1], capacity, paged.k.shape[3])
    k, v = torch.full(shape, float("nan")), torch.full(shape, float("nan"))
    for row, kv_len in zip(paged.batch.rows, paged.batch.kv_lens, strict=True):
        position = torch.arange(kv_len)
        block, offset = paged.table[row, position // 16].long(), position % 16
        k[row, :, :kv_len] = paged.k[block, :, offset].transpose(0, 1)
        v[row, :, :kv_len] = paged.v[block, :, offset].transpose(0, 1)
    contiguous = paged._replace(k=k, v=v)
    for share in (None, 1):
        want = run(paged, rules.causal(), force_share=share)
        assert torch.equal(run(contiguous, rules.causal(), force_share=share, paged=False), want)


def test_shapes_that_the_kernel_would_misread_are_refused():
    scene = make_scene([(1, 8)])
    k = scene.k
    with pytest.raises(ValueError, match="head_dim must be one of"):
        run(scene._replace(q=torch.zeros(1, 6, 72), k=k[..., :72], v=k[..., :72]), rules.causal())
    wide = torch.zeros(*k.shape[:3], 128)[..., ::2]
    with pytest.raises(ValueError, match="each block of K and V must be contiguous"):
        run(scene._replace(k=wide, v=wide), rules.causal())
    with pytest.raises(ValueError, match=r"must be torch\.float32 or e4m3"):
        run(scene._replace(k=k.half(), v=k.half()), rules.causal())
    with pytest.raises(ValueError, match="block_size must be one of"):
        run(
            scene._replace(k=k[:, :, :12].contiguous(), v=k[:, :, :12].contiguous()), rules.causal()
        )
