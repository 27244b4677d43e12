"""Counting in bulk says what prometheus-client says when it is told of each token by itself."""

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from gateway.tally import TokenTally

BUCKETS = (0.001, 0.0025, 0.1, 1.0)
gaps = st.none() | st.sampled_from(BUCKETS) | st.floats(0, 3)


def series(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs if "_created" not in name}


@given(st.lists(st.tuples(st.integers(1, 4), gaps)))
def test_same_series_as_one_observation_a_token(events: list[tuple[int, float | None]]) -> None:
    bulk, single = CollectorRegistry(), CollectorRegistry()
    tally = TokenTally(BUCKETS)
    bulk.register(tally)
    tokens = Counter("kilburn_generation_tokens", "x", registry=single)
    latency = Histogram(
        "kilburn_inter_token_latency_seconds", "x", registry=single, buckets=BUCKETS
    )
    for num_tokens, gap in events:
        tally.count(num_tokens, gap)
        tokens.inc(num_tokens)
        for _ in range(num_tokens if gap is not None else 0):
            latency.observe((gap or 0.0) / num_tokens)
    seen, wanted = series(bulk), series(single)
    assert seen.keys() == wanted.keys()
    assert all(math.isclose(seen[name], wanted[name], abs_tol=1e-9) for name in wanted)


def test_more_tokens_than_wait_to_be_counted_are_all_counted() -> None:
    registry = CollectorRegistry()
    tally = TokenTally(BUCKETS)
    registry.register(tally)
    for _ in range(20_000):
        tally.count(1, 0.5)
    assert series(registry)["kilburn_inter_token_latency_seconds_count"] == 20_000
