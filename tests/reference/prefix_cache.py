"""A prefix cache that counts as slowly and plainly as can be: a list, most recently used last."""

from collections.abc import Sequence


def token_hits(
    requests: Sequence[tuple[int, Sequence[int]]], block_tokens: int, capacity: int | None
) -> int:
    """Prompt tokens that a cache of `capacity` blocks (None: any number) held. Requests are (prompt length, block ids)."""
    cache: list[int] = []
    total = 0
    for num_prompt, ids in requests:
        hits = 0
        while hits < len(ids) and ids[hits] in cache:
            hits += 1
        total += min(num_prompt, hits * block_tokens)
        for block in reversed(ids):
            if block in cache:
                cache.remove(block)
            cache.append(block)
        if capacity is not None:
            while len(cache) > capacity:
                cache.pop(0)
    return total
