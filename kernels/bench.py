"""Times the attention kernels against what this card can do. Knows kernels and clocks; knows no engine.

    python -m kernels.bench [--json FILE] [--block-costs FILE]

Prints a table. Medians of 50 launches between CUDA events, the level-2 cache flushed before each. What is compared is timed in one
run, launch by launch in turn. Targets (`TARGETS`) are printed beside what they apply to:

 - decode: bytes of K and V over time, as a share of a device-to-device copy of 1 GiB (bytes read and written over time);
 - prefill: time over that of torch's fused attention on contiguous tensors;
 - paged: decode time over that of the contiguous build;
 - table: time of 256 block-table changes in a large table over that in a small one;
 - block_us: microseconds of one decode for each block size and two head sizes; `--block-costs` writes them as a table for the twin.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as fn

from kernels.attention import rules
from kernels.attention.launch import Batch, Placed, attend, place
from kernels.attention.schedule import schedule
from kernels.attention.tiles import decode_tile, prefill_tile
from kernels.cache.table import apply_delta
from kernels.layout import BLOCK_SIZES, KVCache

Run = Callable[[], object]
Timer = Callable[[Sequence[Run]], list[float]]
"""Median microseconds of each of several things, run in turn."""

TARGETS: Final = {
    "decode_1gib_of_copy_ratio": (0.90, "at least"),
    "decode_256mib_of_copy_ratio": (0.80, "at least"),
    "prefill_vs_torch_ratio": (1.20, "at most"),
    "paged_vs_contiguous_ratio": (1.01, "at most"),
    "table_large_vs_small_ratio": (1.10, "at most"),
}
BLOCK_FIGURE: Final = re.compile(r"decode_d(?P<head>\d+)_block_(?P<block>\d+)_us")
REPEATS: Final = 50
FLUSH_BYTES: Final = 256 << 20


class Card(NamedTuple):
    """Where to run: device, 10 * major + minor, multiprocessors."""

    device: torch.device
    capability: int
    multiprocessors: int


class Sizes(NamedTuple):
    """What is timed. The defaults are Llama-3-8B's heads."""

    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    copy_bytes: int = 1 << 30
    decodes: tuple[tuple[str, int, int], ...] = (
        ("1gib", 64, 4096),
        ("256mib", 16, 4096),
        ("long", 1, 65536),
    )
    """(name, sequences, keys of each)."""
    prefill: int = 4096
    block_head_dims: tuple[int, ...] = (64, 128)
    """Head sizes for which every block size is timed."""
    tables: tuple[int, int] = (1 << 10, 1 << 24)
    """Entries of a small and a large block table."""


def cuda_timer(runs: Sequence[Run]) -> list[float]:
    """Times by CUDA events, after ten runs of each that are not counted."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times: list[list[float]] = [[] for _ in runs]
    for repeat in range(-10, REPEATS):
        for run, own in zip(runs, times, strict=True):
            flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            if repeat >= 0:
                own.append(1000 * begin.elapsed_time(end))
    return [statistics.median(own) for own in times]


class Scene(NamedTuple):
    """Sequences of equal lengths over a cache, their blocks scattered over the pool."""

    q: torch.Tensor
    out: torch.Tensor
    cache: KVCache
    table: torch.Tensor
    batch: Batch
    launches: Sequence[Placed]
    paged: bool


def make_scene(
    card: Card,
    s: Sizes,
    sequences: int,
    queries: int,
    keys: int,
    block_size: int,
    paged: bool = True,
) -> Scene:
    """Random content; the contiguous build's rows are as long as they must be."""
    ints = {"dtype": torch.int32, "device": card.device}
    columns = -(-keys // block_size) if paged else 1
    length = block_size if paged else keys
    pool = (sequences * columns, s.kv_heads, length, s.head_dim)
    k, v = (torch.randn(pool, dtype=s.dtype, device=card.device) for _ in "kv")
    order = np.random.default_rng(0).permutation(sequences * columns)
    table = torch.tensor(order.reshape(sequences, columns), **ints)
    q = torch.randn(sequences * queries, s.heads, s.head_dim, dtype=s.dtype, device=card.device)
    group = s.heads // s.kv_heads
    shape = (s.head_dim, group, s.dtype.itemsize, s.dtype.itemsize)
    launches = schedule(
        np.full(sequences, queries, np.int32),
        np.full(sequences, keys, np.int32),
        small=decode_tile(*shape),
        large=prefill_tile(*shape, card.capability),
        group=group,
        kv_heads=s.kv_heads,
        num_sms=card.multiprocessors,
    )
    placed = [
        place(
            x.tile, x.tokens, x.splits, torch.tensor(x.tile_seqs, **ints), torch.tensor(x.tile_tokens, **ints),
            torch.tensor([x.share], **ints), kv_heads=s.kv_heads, head_dim=s.head_dim,
        )
        for x in launches
    ]  # fmt: skip
    batch = Batch(
        torch.arange(sequences, **ints),
        torch.arange(0, (sequences + 1) * queries, queries, **ints),
        torch.full((sequences,), keys, **ints),
    )
    return Scene(q, torch.empty_like(q), KVCache(k, v), table, batch, placed, paged)


def runner(scene: Scene, card: Card) -> Run:
    """One attention call over the scene."""
    rule, scale = rules.causal(), scene.q.shape[2] ** -0.5

    def run() -> None:
        attend(
            scene.out, scene.q, scene.cache, scene.table, scene.batch, scene.launches, rule, scale,
            paged=scene.paged, capability=card.capability,
        )  # fmt: skip

    return run


def bench_copy(card: Card, s: Sizes, timer: Timer) -> float:
    """Bytes a microsecond of a copy on the device, read and written."""
    source = torch.empty(s.copy_bytes, dtype=torch.uint8, device=card.device)
    target = torch.empty_like(source)
    (us,) = timer([lambda: target.copy_(source)])
    return 2 * s.copy_bytes / us


def bench_decode(card: Card, s: Sizes, timer: Timer, copy_bandwidth: float) -> dict[str, float]:
    """Decode at each size, paged and contiguous in turn."""
    figures = {}
    for name, sequences, keys in s.decodes:
        paged = make_scene(card, s, sequences, 1, keys, 16)
        contiguous = make_scene(card, s, sequences, 1, keys, 16, paged=False)
        us, flat_us = timer([runner(paged, card), runner(contiguous, card)])
        read = 2 * sequences * keys * s.kv_heads * s.head_dim * s.dtype.itemsize
        figures[f"decode_{name}_us"] = us
        figures[f"decode_{name}_of_copy_ratio"] = read / us / copy_bandwidth
        if name == s.decodes[0][0]:
            figures["paged_vs_contiguous_ratio"] = us / flat_us
    return figures


def bench_blocks(card: Card, s: Sizes, timer: Timer) -> dict[str, float]:
    """The first decode size for every block size, at each of `block_head_dims`."""
    _, sequences, keys = s.decodes[0]
    figures = {}
    for head_dim in s.block_head_dims:
        sizes = s._replace(head_dim=head_dim)
        scenes = [make_scene(card, sizes, sequences, 1, keys, size) for size in BLOCK_SIZES]
        times = timer([runner(scene, card) for scene in scenes])
        for size, us in zip(BLOCK_SIZES, times, strict=True):
            figures[f"decode_d{head_dim}_block_{size}_us"] = us
    return figures


def block_costs(figures: dict[str, float]) -> list[dict[str, float]]:
    """What decode attention costs in each block size, relative to blocks of 16 at the same head size."""
    table = []
    for name, us in figures.items():
        if found := BLOCK_FIGURE.fullmatch(name):
            head, size = int(found["head"]), int(found["block"])
            usual = figures[f"decode_d{head}_block_16_us"]
            table.append({"block_size": size, "head_size": head, "relative_cost": us / usual})
    return table


def bench_prefill(card: Card, s: Sizes, timer: Timer) -> dict[str, float]:
    """One prompt, causal, against torch's fused attention."""
    scene = make_scene(card, s, 1, s.prefill, s.prefill, 16)
    q, k, v = (
        torch.randn(1, n, s.prefill, s.head_dim, dtype=s.dtype, device=card.device)
        for n in (s.heads, s.kv_heads, s.kv_heads)
    )
    us, torch_us = timer(
        [
            runner(scene, card),
            lambda: fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        ]
    )
    return {"prefill_us": us, "prefill_vs_torch_ratio": us / torch_us}


def bench_table(card: Card, s: Sizes, timer: Timer) -> dict[str, float]:
    """256 changes of a small and of a large block table."""
    runs: list[Run] = []
    for entries in s.tables:
        table = torch.zeros((entries // 64, 64), dtype=torch.int32, device=card.device)
        places = np.random.default_rng(0).choice(entries, min(256, entries), replace=False)
        delta = np.stack([places // 64, places % 64, places]).astype(np.int32)
        on_device = torch.from_numpy(delta).to(card.device)
        runs.append(lambda table=table, delta=on_device: apply_delta(table, delta))
    small, large = timer(runs)
    return {"table_delta_us": large, "table_large_vs_small_ratio": large / small}


def measure(card: Card, s: Sizes, timer: Timer) -> dict[str, float]:
    """All figures by name."""
    bandwidth = bench_copy(card, s, timer)
    return {
        "copy_gb_s": bandwidth / 1000,
        **bench_decode(card, s, timer, bandwidth),
        **bench_blocks(card, s, timer),
        **bench_prefill(card, s, timer),
        **bench_table(card, s, timer),
    }


def missed(figures: dict[str, float]) -> list[str]:
    """The targets that the figures miss, one sentence each."""
    found = []
    for name, (target, sense) in TARGETS.items():
        good = figures[name] >= target if sense == "at least" else figures[name] <= target
        if not good:
            found.append(f"{name} is {figures[name]:.3f}; it should be {sense} {target}")
    return found


def main() -> int:
    """Measures on the current CUDA device; 1 if a target is missed, 2 where there is no device."""
    parser = argparse.ArgumentParser(description="Time the attention kernels on this card.")
    parser.add_argument("--json", type=Path, help="write one flat object of figures here")
    parser.add_argument("--block-costs", type=Path, help="write the table of block sizes here")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("kernels.bench needs a CUDA device, and torch finds none\n")
        return 2
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    card = Card(torch.device("cuda"), 10 * facts.major + facts.minor, facts.multi_processor_count)
    figures = measure(card, Sizes(), cuda_timer)
    misses = missed(figures)
    sys.stdout.write(f"{facts.name}, {facts.multi_processor_count} multiprocessors\n")
    for name, value in figures.items():
        target = " ".join(map(str, reversed(TARGETS[name]))) if name in TARGETS else ""
        sys.stdout.write(f"{name:32} {value:12.3f}  {target}\n")
    sys.stdout.writelines(f"missed: {x}\n" for x in misses)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.block_costs:
        options.block_costs.write_text(json.dumps(block_costs(figures), indent=1) + "\n")
    return int(bool(misses))


if __name__ == "__main__":
    sys.exit(main())
