"""Paged attention on this CPU against the time to read its keys and values once, at 8 streams of 4,000 tokens.

The default model's heads and layers, blocks of 16 scattered over the pool, bfloat16: each round runs the attention of one decode step (rotation,
cache write, walk, merge) through all layers, then has as many threads read the same bytes in the order of memory, as wide as the
CPU loads. `attention_8x4000_vs_read_ratio` is the median over the rounds of the first time over the second; it should be at most 2.
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numba
import numpy as np

from kernels.cpu.host import physical_cores
from kernels.cpu.paged import PagedAttention, PoolShape, address, scratch_bytes
from kernels.cpu.simd import add, loadf, splatf, total
from kernels.cpu.team import Program, Team, allocate

STREAMS, TOKENS, BLOCK = 8, 4000, 16
SHAPE = PoolShape(
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    block_size=BLOCK,
    num_blocks=STREAMS * TOKENS // BLOCK,
)


@numba.njit(nogil=True)
def read(start, end):
    """Loads every byte of [start, end), multiples of 256, and returns a number that needs them all."""
    a = b = c = d = splatf(np.float32(0.0))
    for i in range(start, end, 256):
        a, b = add(a, loadf(i)), add(b, loadf(i + 64))
        c, d = add(c, loadf(i + 128)), add(d, loadf(i + 192))
    return total(add(add(a, b), add(c, d)))


def reading(paged: PagedAttention, threads: int) -> Callable[[], None]:
    """Reads the whole pool once, a stretch for each thread."""
    start = address(paged.pool)
    size = paged.layer_bytes * SHAPE.num_layers
    edges = [start + size * i // threads // 256 * 256 for i in range(threads + 1)]

    def run() -> None:
        workers = [
            threading.Thread(target=read, args=(np.int64(a), np.int64(b)))
            for a, b in pairwise(edges)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    return run


def attending(paged: PagedAttention, team: Team) -> Callable[[], None]:
    """The attention of one decode step of all streams, in all layers."""
    order = np.random.default_rng(0).permutation(SHAPE.num_blocks).astype(np.int32)
    tables = order.reshape(STREAMS, -1)
    rows = np.arange(STREAMS, dtype=np.int32)
    starts = np.full(STREAMS, TOKENS - 1, np.int32)
    counts = np.ones(STREAMS, np.int32)
    qkv = allocate(4 * STREAMS * SHAPE.qkv_width)
    qkv.view(np.float32)[:] = np.random.default_rng(1).standard_normal(len(qkv) // 4)
    paged.fit(starts, counts)
    paged.begin(rows, starts, counts, tables)
    program = Program()
    paged.add_prepare(program)
    for layer in range(SHAPE.num_layers):
        paged.add_layer(program, layer, address(qkv))
    built = program.build()
    held = (tables, qkv, program)

    def run() -> None:
        team.run(built)
        assert held

    return run


def measure(threads: int, rounds: int) -> dict[str, float]:
    """Figure name to milliseconds, to 10^9 bytes a second, or to their ratio."""
    team = Team(threads, scratch_bytes(SHAPE))
    turns = np.concatenate([np.ones((TOKENS, 32)), np.zeros((TOKENS, 32))], 1).astype(np.float32)
    paged = PagedAttention(SHAPE, turns, team)
    paged.pool.view(np.uint16)[:] = 0x3C00
    sides = (attending(paged, team), reading(paged, threads))
    times: list[list[float]] = [[], []]
    for counted in range(-2, rounds):
        for side, own in zip(sides, times, strict=True):
            begin = time.perf_counter()
            side()
            if counted >= 0:
                own.append(1000 * (time.perf_counter() - begin))
    team.close()
    attend, once = times
    num_bytes = paged.layer_bytes * SHAPE.num_layers
    return {
        "attention_8x4000_ms": statistics.median(attend),
        "read_8x4000_ms": statistics.median(once),
        "read_gb_s": num_bytes / statistics.median(once) / 1e6,
        "attention_8x4000_vs_read_ratio": statistics.median(
            a / b for a, b in zip(attend, once, strict=True)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    figures = measure(options.threads, options.rounds)
    for name, value in figures.items():
        print(f"{name:32} {value:9.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
