"""The hit ratios of a public trace come out of the real pool and index: infinite, and LRU of several sizes.

Rule: requests in order; one hits the longest run of its leading blocks that are there; then all its blocks enter. LRU: its blocks are
touched deepest first, root last; then the cache is evicted down to its size. No memory is held by running requests.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.core.blocks import BlockPool
from engine.core.config import MemoryConfig
from engine.core.content import TraceContent
from engine.core.memory import BlockManager
from engine.core.prefix import PrefixIndex
from traces.formats import open_trace

TRACE = "mooncake_fast25_conversation.jsonl.gz"
TRACE_BLOCK = 512


@pytest.fixture(scope="module")
def requests(shared_traces: Path) -> list[tuple[int, np.ndarray]]:
    path = shared_traces / TRACE
    if not path.is_file():
        pytest.skip(f"{TRACE} is not on this machine")
    rows = open_trace(path, strict=True).requests()
    return [(row.num_prompt, np.array(row.hash_ids, np.int64)) for row in rows]


class Cache:
    """The rule of the ratios, on a pool and an index that have room for what a request adds before it is evicted again."""

    def __init__(self, capacity: int | None, spare: int = 300, infinite: int = 183_000) -> None:
        self.capacity = capacity
        total = infinite if capacity is None else capacity + spare
        self.pool = BlockPool(total)
        self.index = PrefixIndex(total, self.pool.indexed)

    def look(self, ids: np.ndarray) -> int:
        keys = ids[:, None]
        hits = self.index.lookup("", keys)
        pool, new = self.pool, len(ids) - len(hits)
        pool.share(hits)
        taken = pool.take(new)
        assert taken is not None
        fresh, evicted = taken
        assert not len(evicted), "the spare room was too small"
        if new:
            parent = int(hits[-1]) if len(hits) else -1
            assert self.index.publish("", parent, keys[len(hits) :], fresh) == new
        pool.give(np.concatenate([hits, fresh]))
        if self.capacity is not None and pool.cached > self.capacity:
            self.shrink()
        return len(hits)

    def shrink(self) -> None:
        """Takes every free frame and as many cached ones as there are too many, and gives them back without content."""
        over = self.pool.cached - self.capacity
        taken, evicted = self.pool.take(self.pool.free + over)
        self.index.drop(evicted)
        self.pool.give(taken)
        assert len(evicted) == over


def ratios(requests: list[tuple[int, np.ndarray]], capacity: int | None) -> tuple[float, float]:
    """(of blocks, of tokens)."""
    cache = Cache(capacity)
    blocks = tokens = hit_blocks = hit_tokens = 0
    for num_prompt, ids in requests:
        hits = cache.look(ids)
        blocks += len(ids)
        tokens += num_prompt
        hit_blocks += hits
        hit_tokens += min(num_prompt, hits * TRACE_BLOCK)
    cache.pool.check_invariants()
    cache.index.check_invariants()
    return hit_blocks / blocks, hit_tokens / tokens


def test_an_infinite_cache_hits_as_often_as_published(requests):
    blocks, tokens = ratios(requests, None)
    assert round(100 * blocks, 2) == 36.64
    assert round(100 * tokens, 2) == 37.36


@pytest.mark.parametrize(
    ("capacity", "percent"),
    [
        (1_000, 4.54),
        (5_000, 11.40),
        (10_000, 21.57),
        (30_000, 33.22),
        (50_000, 36.15),
        (100_000, 37.08),
    ],
)
def test_an_lru_cache_hits_as_often_as_published(requests, capacity, percent):
    assert round(100 * ratios(requests, capacity)[1], 2) == percent


def expected_hits(requests: list[tuple[int, np.ndarray]], size: int) -> Iterator[int]:
    """Tokens that each request finds in an infinite cache of blocks of `size`, all but its last position at most."""
    seen: set[tuple[int, int]] = set()
    for num_prompt, ids in requests:
        ends = range(size, num_prompt + 1, size)
        keys = [(int(ids[(end - 1) // TRACE_BLOCK]), end) for end in ends]
        hits = 0
        while hits < (num_prompt - 1) // size and keys[hits] in seen:
            hits += 1
        seen.update(keys)
        yield hits * size


@pytest.mark.parametrize(
    ("size", "count"), [(16, 1_500), (48, 1_500), (512, 4_000), (1_024, 4_000)]
)
def test_any_block_size_finds_what_the_key_rule_says(requests, size, count):
    """(id of the trace block that covers the last position, that position) names a KV block."""
    some = requests[:count]
    frames = sum(-(-num_prompt // size) for num_prompt, _ in some)
    memory = BlockManager(MemoryConfig(num_blocks=frames, block_size=size))
    for row, ((num_prompt, ids), expected) in enumerate(
        zip(some, expected_hits(some, size), strict=True)
    ):
        row %= 2  # Rows are used again.
        memory.open(row, TraceContent(ids, TRACE_BLOCK), "", num_prompt)
        memory.admit_group([(row, num_prompt)], 0, 0)
        assert memory.last_hits * size == expected
        memory.publish(row, num_prompt)
        memory.release(row)
        memory.close(row)
        memory.take_deltas()
    memory.check_invariants()
