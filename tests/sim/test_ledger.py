"""The ledger: every request in one state, latencies by their definitions, percentiles as NumPy's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.ledger import Ledger, State
from traces.stats import spread


def test_latencies_follow_their_definitions():
    ledger = Ledger()
    several = ledger.arrive(1_000_000, 10, 5)
    ledger.first_token(several, 3_000_000)
    ledger.end(several, 11_000_000, done=True)
    single = ledger.arrive(2_000_000, 10, 1)
    ledger.first_token(single, 3_500_000)
    ledger.end(single, 3_500_000, done=True)
    refused = ledger.arrive(2_000_000, 10, 1)
    ledger.reject(refused, "pool_exceeded", 2_000_000)
    ledger.arrive(2_500_000, 10, 1)
    times = ledger.latencies()
    assert times.ttft_ms.tolist() == [2.0, 1.5]
    assert times.tpot_ms.tolist() == [2.0]
    assert times.e2e_ms.tolist() == [10.0, 1.5]
    assert [ledger.count(state) for state in State] == [1, 2, 1, 0]


def test_a_recomputed_request_keeps_its_first_token():
    ledger = Ledger()
    request = ledger.arrive(0, 1, 9)
    ledger.first_token(request, 5)
    ledger.first_token(request, 50)
    assert ledger.first_token_ns[request] == 5


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50))
def test_percentiles_are_numpys_with_their_sample_count(values):
    sample = np.array(values)
    found = spread(sample)
    assert found.count == len(values)
    assert [found.p50, found.p90, found.p99] == np.percentile(sample, [50, 90, 99]).tolist()
    assert found.min == min(values)
    assert found.max == max(values)


def test_an_empty_sample_has_a_count_and_nothing_else():
    found = spread(np.zeros(0))
    assert found.count == 0
    assert found.p50 is found.mean is found.max is None
