"""What a trace asks of any fleet at the very least, request by request: positions to compute, tokens to decode, blocks to hold. Knows no cost.

Prompts are computed as if every replica shared one prefix cache that never evicts: each distinct block once, by the first request to arrive
that has it. Blocks of which somebody computes a copy of their own beside (the last of a prompt that it fills, which the engine never takes from
the cache) are not counted again.
"""

from array import array
from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from sim.arrays import Bools, Floats, Ints
from traces.schema import ROOT, TraceRequest


class Demand(Struct, frozen=True, kw_only=True):
    """Columns by request, [n], in the trace's order."""

    arrival_ns: Ints
    is_free: Bools
    """It comes when it comes: it waits for no other."""
    prompt: Ints
    output: Ints
    computed: Ints
    """Positions of its prompt that nobody before it has computed."""
    pairs: Floats
    """(query, key) pairs of those."""
    unkeyed: Ints
    """Positions of its prompt that no cache can keep."""
    held_blocks: Floats
    """Blocks of its prompt, each over the number of requests that may hold it together."""


def demand_of(requests: Iterable[TraceRequest], block_size: int, hash_block_tokens: int) -> Demand:
    """One pass over the requests. O(block ids · log) time, 24 bytes an id.

    Args:
        requests: Those that will be served, in the trace's order.
        block_size: Of the pool.
        hash_block_tokens: What an id covers; 0: nothing is shared.
    """
    columns: list[array[int]] = [array("q") for _ in range(5)]
    arrival, free, prompt, output, count = columns
    ids: array[int] = array("q")
    for row in requests:
        arrival.append(row.arrival_ns)
        free.append(row.after == ROOT)
        prompt.append(row.num_prompt)
        output.append(row.num_output)
        taken = min(len(row.hash_ids), _blocks(row.num_prompt, hash_block_tokens))
        count.append(taken)
        ids.extend(row.hash_ids[:taken])
    prompts = np.array(prompt, np.int64)
    counts = np.array(count, np.int64)
    keyed = np.minimum(prompts, counts * hash_block_tokens) // block_size * block_size
    computed = prompts - keyed
    pairs = _pairs(keyed, prompts)
    held = computed / block_size
    if len(ids):
        owned, owned_pairs, shared = _keyed_blocks(
            np.frombuffer(ids, np.int64), counts, keyed, block_size, hash_block_tokens
        )
        computed += owned
        pairs += owned_pairs
        held += shared
    return Demand(
        arrival_ns=np.array(arrival, np.int64),
        is_free=np.array(free, np.bool_),
        prompt=prompts,
        output=np.array(output, np.int64),
        computed=computed,
        pairs=pairs,
        unkeyed=prompts - keyed,
        held_blocks=held,
    )


def _blocks(tokens: int, size: int) -> int:
    return -(-tokens // size) if size else 0


def _pairs(start: Ints, end: Ints) -> Floats:
    """Of the positions from `start` to `end`, each with all up to itself."""
    first, last = start.astype(np.float64), end.astype(np.float64)
    return (last * (last + 1) - first * (first + 1)) / 2


def _keyed_blocks(
    ids: Ints, counts: Ints, keyed: Ints, block_size: int, covers: int
) -> tuple[Ints, Floats, Floats]:
    """By request: (positions, pairs) of keyed blocks that it is the first to have, and the blocks that it holds over how many have them."""
    owner = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    starts = np.cumsum(counts) - counts
    place = np.arange(len(ids)) - starts[owner]
    # A KV block's key is the id that covers its last position.
    low = np.minimum(place * covers // block_size * block_size, keyed[owner])
    high = np.minimum((place + 1) * covers // block_size * block_size, keyed[owner])
    _, first, inverse, sharers = np.unique(
        ids, return_index=True, return_inverse=True, return_counts=True
    )
    size = len(counts)
    held = np.bincount(owner, (high - low) / block_size / sharers[inverse], size)
    new = owner[first]
    positions: Ints = np.bincount(new, high[first] - low[first], size).astype(np.int64)
    pairs = np.bincount(new, _pairs(low[first], high[first]), size)
    return positions, pairs.astype(np.float64), held.astype(np.float64)
