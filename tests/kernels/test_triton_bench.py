"""The benchmark runs from end to end on small sizes; what it says of a card is for cards to say."""

import time

import torch

from kernels.bench import TARGETS, Card, Sizes, block_costs, measure, missed
from kernels.layout import BLOCK_SIZES
from tests.kernels.device import DEVICE

SMALL = Sizes(
    heads=2,
    kv_heads=1,
    head_dim=64,
    dtype=torch.float16,
    copy_bytes=1 << 12,
    decodes=(("1gib", 1, 40), ("256mib", 1, 40)),
    prefill=20,
    tables=(1 << 8, 1 << 9),
)


def wall_timer(runs):
    times = []
    for run in runs:
        begin = time.perf_counter()
        run()
        times.append(1e6 * (time.perf_counter() - begin))
    return times


def test_every_target_has_its_figure():
    figures = measure(Card(torch.device(DEVICE), 90, 1), SMALL, wall_timer)
    assert TARGETS.keys() <= figures.keys()
    assert all(value > 0 for value in figures.values())
    costs = block_costs(figures)
    assert [(x["head_size"], x["block_size"]) for x in costs] == [
        (head, size) for head in SMALL.block_head_dims for size in BLOCK_SIZES
    ]
    assert [x["relative_cost"] for x in costs if x["block_size"] == 16] == [1.0, 1.0]


def test_missed_targets_are_named_with_what_they_should_be():
    good = {name: target for name, (target, _) in TARGETS.items()}
    assert missed(good) == []
    bad = good | {"prefill_vs_torch_ratio": 2.0, "decode_1gib_of_copy_ratio": 0.5}
    assert missed(bad) == [
        "decode_1gib_of_copy_ratio is 0.500; it should be at least 0.9",
        "prefill_vs_torch_ratio is 2.000; it should be at most 1.2",
    ]
