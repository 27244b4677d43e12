"""The end-to-end GPU benchmark runs on a small shape; what it says of a card is for cards to say."""

import msgspec

from benchmarks.gpu_engine import LLAMA_3_8B, Load, measure, random_model
from engine.runner import build_runner
from tests.kernels.device import DEVICE

SMALL = msgspec.structs.replace(
    LLAMA_3_8B,
    vocab_size=64,
    num_layers=1,
    hidden_size=64,
    ffn_size=64,
    num_heads=1,
    num_kv_heads=1,
    head_size=64,
    max_context=64,
)


def test_each_figure_is_there():
    runner = build_runner(random_model(SMALL, DEVICE), device="cuda", num_blocks=16)
    figures = measure(runner, Load(streams=(1, 2), prompt=6, new=3, prefill=20, rounds=1))
    assert figures.keys() == {"prefill_tok_s", "decode_tok_s_1", "decode_tok_s_2"}
    assert all(value > 0 for value in figures.values())
