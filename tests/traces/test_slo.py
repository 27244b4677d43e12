"""Promises as they are spelled."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import ConfigError
from traces.slo import Clause, Slo, allowed_misses, parse_slo


def test_metrics_percentiles_units_and_goodput():
    assert parse_slo("ttft_p99=2s, TPOT_p90=60ms,e2e=1.5m,goodput=95%") == Slo(
        clauses=(
            Clause(metric="ttft", percentile=99, limit_ms=2000),
            Clause(metric="tpot", percentile=90, limit_ms=60),
            Clause(metric="e2e", percentile=99, limit_ms=90_000),
        ),
        goodput=0.95,
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ttft", "tpot", "e2e"]),
            st.sampled_from([50.0, 90.0, 95.0, 99.0, 99.9, 99.9999, 0.0001]),
            st.one_of(
                st.integers(1, 10**6), st.sampled_from([1e-6, 0.1, 1234567.125, 31_536_000_000])
            ),
        ),
        min_size=1,
        unique_by=lambda part: part[:2],
    ),
    st.sampled_from([None, 1e-8, 0.5, 0.95, 0.99999995, 1.0]),
)
def test_a_promise_reads_back_as_it_is_spelled(parts, goodput):
    clauses = tuple(Clause(metric=m, percentile=p, limit_ms=float(ms)) for m, p, ms in parts)
    slo = Slo(clauses=clauses, goodput=goodput)
    assert parse_slo(str(slo)) == slo


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no limit"),
        ("ttft_p99", "write METRIC_pNN=TIME"),
        ("latency=2s", "'latency' is unknown"),
        ("ttft_p0=2s", "'ttft_p0' is unknown"),
        ("ttft_p101=2s", "'ttft_p101' is unknown"),
        ("ttft_p99=2", "with its unit"),
        ("ttft_p99=0s", "above 0"),
        ("ttft_p99=2h", "such as 2s or 60ms"),
        ("ttft=0.0000001ms", "from a nanosecond to a year"),
        ("ttft=99999999999999s", "from a nanosecond to a year"),
        (f"ttft={'9' * 400}s", "from a nanosecond to a year"),
        ("ttft_p99.99999=2s", "at most 4 decimals"),
        ("ttft_p\u0669=2s", "is unknown"),
        ("ttft=\u0663s", "with its unit"),
        ("ttft=2s,ttft_p99=3s", "ttft_p99 is given twice"),
        ("goodput=95%", "goodput needs limits"),
        ("ttft=2s,goodput=0", "above 0 and at most 1"),
        ("ttft=2s,goodput=950", "such as 0.95 or 95%"),
        ("ttft=2s,goodput=1,goodput=1", "goodput is given twice"),
    ],
)
def test_what_is_wrong_with_a_promise_is_one_sentence(text, message):
    with pytest.raises(ConfigError) as found:
        parse_slo(text)
    assert message in found.value.message


@given(st.integers(0, 10**6), st.sampled_from([50, 90, 95, 99, 99.9, 100]))
def test_at_most_the_stated_share_may_be_late(population, percent):
    allowed = allowed_misses(population, percent)
    exact = population * (1000 - round(percent * 10)) // 1000
    assert allowed == exact
    assert not population or allowed < population
    assert allowed <= math.floor(population * (1 - percent / 100) + 1e-6)
