"""The pool: what memory leaves, on one device and on several, and plain words where it leaves nothing."""

import pytest

from engine.core.errors import ConfigError
from sim.config import build_config
from sim.replay import resolve


def pool_of(**settings):
    return resolve(build_config(**settings)).pool


def test_several_devices_hold_a_model_that_one_cannot():
    with pytest.raises(ConfigError, match=r"H100 with .* leaves no room"):
        pool_of(model="Llama-3.1-70B", hardware="H100")
    four = pool_of(model="Llama-3.1-70B", hardware="H100", tensor_parallel=4)
    assert four.weight_bytes == 2 * 70_553_706_496
    left = int(4 * 81559 * 2**20 * 0.9) - four.weight_bytes
    left -= four.activation_bytes + four.runtime_bytes
    assert four.num_blocks == left // four.block_bytes
    one = pool_of(hardware="H100")
    assert four.runtime_bytes == 4 * one.runtime_bytes


def test_more_devices_than_kv_heads_keep_copies_of_them():
    by_devices = {n: pool_of(hardware="H100", tensor_parallel=n).block_bytes for n in (1, 8, 16)}
    assert by_devices[8] == by_devices[1]
    assert by_devices[16] == 2 * by_devices[1]


@pytest.mark.parametrize("devices", [3, 5, 64])
def test_heads_that_cannot_be_shared_out_are_refused(devices):
    with pytest.raises(ConfigError, match=r"--tensor-parallel .* 32 heads"):
        pool_of(hardware="H100", tensor_parallel=devices)


def test_quantised_weights_leave_more_room_but_not_all_that_their_bits_suggest():
    sizes = {dtype: pool_of(dtype=dtype) for dtype in ("bf16", "fp8", "int4")}
    head_and_embeddings = 2 * 128_256 * 4096
    layers = 8_030_261_248 - head_and_embeddings
    assert sizes["int4"].num_blocks > sizes["fp8"].num_blocks > sizes["bf16"].num_blocks
    assert sizes["fp8"].weight_bytes == pytest.approx(layers + 2 * head_and_embeddings, rel=1e-4)
