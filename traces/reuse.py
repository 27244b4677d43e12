"""How much of a trace's prompts an ideal prefix cache would hold: infinite, and LRU of given sizes. Knows no scheduler.

Requests are taken in trace order. A request hits the longest run of its leading blocks that are in the cache; then all its blocks enter.
Token hits are hit blocks times block size, at most the prompt. Outputs are neither counted nor cached, and no memory is
held by running requests. An LRU cache touches a request's blocks deepest first, root last, and then evicts down to its size.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

from msgspec import Struct

from traces.schema import TraceRequest


class LruHits(Struct, frozen=True, kw_only=True):
    """One bounded cache."""

    capacity_blocks: int
    token_hit_ratio: float


class PrefixReuse(Struct, frozen=True, kw_only=True):
    """Of an infinite cache, and of bounded ones."""

    block_tokens: int
    block_refs: int
    distinct_blocks: int
    single_use_blocks: int
    """Distinct blocks that occur in one request only."""
    block_hit_ratio: float
    token_hit_ratio: float
    mean_request_hit_ratio: float
    """Mean over requests of each one's token hit ratio."""
    requests_with_hit: int
    lru: list[LruHits]


class _Lru:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.hit_tokens = 0
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def look(self, ids: Sequence[int], num_prompt: int, block_tokens: int) -> None:
        """Counts the hits of a request, then touches its blocks, deepest first."""
        blocks = self._blocks
        hits = next((i for i, block in enumerate(ids) if block not in blocks), len(ids))
        self.hit_tokens += min(num_prompt, hits * block_tokens)
        for block in reversed(ids[hits:]):
            blocks.pop(block, None)
            blocks[block] = None
        deque(map(blocks.move_to_end, reversed(ids[:hits])), maxlen=0)
        while len(blocks) > self.capacity:
            blocks.popitem(last=False)


class ReuseCollector:
    """Looks at requests as they pass. O(blocks) each, and as much again for each LRU size."""

    def __init__(self, block_tokens: int, capacities: Sequence[int] = ()) -> None:
        """Starts with empty caches.

        Args:
            block_tokens: What one hash id covers.
            capacities: Of bounded caches, in blocks.
        """
        self._block_tokens = block_tokens
        self._lrus = [_Lru(capacity) for capacity in capacities]
        self._uses: dict[int, bool] = {}
        """Block -> it is in one request only."""
        self._refs = self._hit_blocks = self._hit_tokens = self._tokens = 0
        self._requests = self._with_hit = 0
        self._ratio_sum = 0.0

    def watch(self, requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
        """Yields the same requests."""
        for row in requests:
            self._look(row)
            yield row

    def _look(self, row: TraceRequest) -> None:
        ids = row.hash_ids.tolist()
        uses = self._uses
        hits = next((i for i, block in enumerate(ids) if block not in uses), len(ids))
        uses.update(zip(ids[:hits], repeat(False)))
        for block in ids[hits:]:
            uses[block] = block not in uses
        tokens = min(row.num_prompt, hits * self._block_tokens)
        self._refs += len(ids)
        self._hit_blocks += hits
        self._hit_tokens += tokens
        self._tokens += row.num_prompt
        self._requests += 1
        self._with_hit += hits > 0
        self._ratio_sum += tokens / row.num_prompt if row.num_prompt else 0.0
        for lru in self._lrus:
            lru.look(ids, row.num_prompt, self._block_tokens)

    def figures(self) -> PrefixReuse:
        """Of the requests that have passed."""
        tokens = max(1, self._tokens)
        return PrefixReuse(
            block_tokens=self._block_tokens,
            block_refs=self._refs,
            distinct_blocks=len(self._uses),
            single_use_blocks=sum(self._uses.values()),
            block_hit_ratio=self._hit_blocks / max(1, self._refs),
            token_hit_ratio=self._hit_tokens / tokens,
            mean_request_hit_ratio=self._ratio_sum / max(1, self._requests),
            requests_with_hit=self._with_hit,
            lru=[
                LruHits(capacity_blocks=lru.capacity, token_hit_ratio=lru.hit_tokens / tokens)
                for lru in self._lrus
            ],
        )
