"""Figures of traces: the published ones of the public files, and definitions on small ones."""

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reference.prefix_cache import token_hits
from traces.reuse import ReuseCollector
from traces.schema import TraceRequest
from traces.servegen import mix_stats, read_clients
from traces.stats import arrival_figures, spread
from traces.survey import TraceFigures, survey_trace

LENGTHS = {
    "azure_llm_2023_conv.csv.gz": (
        19_366,
        (1_154.7, 1_020, 2_734.5, 4_142, 14_050),
        (211.1, 129, 424, 601, 1_000),
    ),
    "mooncake_fast25_conversation.jsonl.gz": (
        12_031,
        (12_035.1, 6_909, 27_367, 85_400, 126_195),
        (342.6, 350, 597, 1_118.5, 2_000),
    ),
    "sharegpt_firstturn_lengths.csv.gz": (
        58_787,
        (298.8, 36, 829, 3_473, 241_402),
        (323.7, 280, 683, 999, 37_622),
    ),
    "sharegpt_multiturn_8k_lengths.csv.gz": (
        30_731,
        (2_340.0, 1_730, 5_696, 7_434, 8_141),
        (438.7, 415, 834, 998, 1_024),
    ),
    "arxiv_summarization_lengths.csv.gz": (
        28_257,
        (2_588.1, 2_730, 3_702, 3_933, 4_054),
        (291.4, 167, 372, 3_271, 4_056),
    ),
    "claude_code_sessions_a.jsonl.gz": (
        5_163,
        (127_413, 107_613, 176_625, 667_401, 838_246),
        (406.3, 235, 808.8, 3_224.7, 15_390),
    ),
}


@pytest.fixture(scope="module")
def figures_of(shared_traces):
    known: dict[str, TraceFigures] = {}

    def get(name: str, lru: str = "") -> TraceFigures:
        if name not in known:
            found = survey_trace(shared_traces / name, lru=lru, strict=True).figures
            assert isinstance(found, TraceFigures)
            known[name] = found
        return known[name]

    return get


MOONCAKE_LRU = {
    1_000: 4.54,
    5_000: 11.40,
    10_000: 21.57,
    30_000: 33.22,
    50_000: 36.15,
    100_000: 37.08,
}


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_are_the_published_ones(figures_of, name):
    sizes = ",".join(map(str, MOONCAKE_LRU)) if name.startswith("mooncake") else ""
    stats = figures_of(name, sizes).stats
    rows, *published = LENGTHS[name]
    assert stats.requests == rows
    for found, (mean, p50, p90, p99, largest) in zip(
        (stats.prompt_tokens, stats.output_tokens), published, strict=True
    ):
        assert found.mean == pytest.approx(mean, abs=0.06)
        assert found.p50 == p50
        # Some of the published ones are rounded to whole tokens.
        assert found.p90 == pytest.approx(p90, abs=0.51)
        assert found.p99 == pytest.approx(p99, abs=0.51)
        assert found.max == largest


@pytest.mark.parametrize(
    ("name", "span", "rate", "cv", "dispersion", "busiest", "mean", "gap"),
    [
        ("azure_llm_2023_conv.csv.gz", 3501.72, 5.53, 1.094, 16.1, 507, 328, 4.31),
        ("mooncake_fast25_conversation.jsonl.gz", 3537, 3.40, 3.034, 2.9, 247, 204, 3),
    ],
)
def test_arrivals_are_the_published_ones(
    figures_of, name, span, rate, cv, dispersion, busiest, mean, gap
):
    arrivals = figures_of(name).stats.arrivals
    assert arrivals.span_s == pytest.approx(span, abs=0.005)
    assert arrivals.rate_per_s == pytest.approx(rate, abs=0.005)
    assert arrivals.cv == pytest.approx(cv, abs=0.0005)
    assert arrivals.dispersion_60s == pytest.approx(dispersion, abs=0.05)
    assert arrivals.busiest_minute == busiest
    assert round(arrivals.mean_per_minute) == mean
    assert arrivals.longest_gap_s == pytest.approx(gap, abs=0.005)


def test_mooncake_reuse_is_the_published_one(figures_of):
    name = "mooncake_fast25_conversation.jsonl.gz"
    reuse = figures_of(name).reuse
    assert figures_of(name).stats.arrivals.distinct_times == 1_180
    assert (reuse.block_refs, reuse.distinct_blocks) == (288_500, 182_790)
    assert reuse.requests_with_hit == 12_030
    assert round(100 * reuse.block_hit_ratio, 2) == 36.64
    assert round(100 * reuse.token_hit_ratio, 2) == 37.36
    assert round(100 * reuse.mean_request_hit_ratio, 1) == 40.9
    # 75.8499, published as 75.9.
    assert 100 * reuse.single_use_blocks / reuse.distinct_blocks == pytest.approx(75.9, abs=0.051)
    found = {size.capacity_blocks: round(100 * size.token_hit_ratio, 2) for size in reuse.lru}
    assert found == MOONCAKE_LRU


def test_session_figures_are_the_published_ones(figures_of):
    figures = figures_of("claude_code_sessions_a.jsonl.gz")
    assert round(100 * figures.reuse.block_hit_ratio, 2) == 95.22
    assert round(100 * figures.reuse.token_hit_ratio, 2) == 95.19
    assert figures.reuse.distinct_blocks == 491_416
    sessions = figures.stats.sessions
    assert sessions.sessions == 80
    size = sessions.requests_per_session
    assert (round(size.mean, 1), size.p50, round(size.p90), size.max) == (64.5, 36, 174, 409)
    assert figures.stats.arrivals is None


def test_client_mix_figures_are_the_published_ones(shared_traces):
    stats = mix_stats(read_clients(shared_traces / "servegen_deepseek_r1_clients.jsonl.gz"))
    assert (stats.clients, stats.windows, stats.silent_windows) == (73, 10_512, 7_401)
    assert round(stats.rate_per_s, 1) == 16.0
    assert round(stats.lowest_window_rate, 1) == 4.3
    assert round(stats.highest_window_rate, 1) == 42.5
    assert round(stats.cv, 2) == 2.28
    assert round(100 * stats.largest_client_share, 1) == 28.6
    prompt, output = stats.prompt_tokens, stats.output_tokens
    assert round(prompt.mean, 1) == 1_268.2
    assert (prompt.p50, prompt.p90, prompt.p99, prompt.max) == (208, 2_092, 23_423, 57_284)
    assert round(output.mean, 1) == 1_527.4
    assert (output.p50, output.p90, output.p99, output.max) == (792, 3_432, 12_607, 32_768)


# Ids stand for prefixes: a request's path in a tree, each node numbered by the path to it.
paths = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=12)


@given(paths, st.integers(1, 8), st.data())
def test_reuse_equals_a_plain_cache(tree_paths, capacity, data):
    numbers: dict[tuple[int, ...], int] = {}
    collector = ReuseCollector(4, [capacity])
    plain = []
    for path in tree_paths:
        ids = [numbers.setdefault(tuple(path[: i + 1]), len(numbers)) for i in range(len(path))]
        num_prompt = data.draw(st.integers(4 * len(ids) - 3, 4 * len(ids)))
        plain.append((num_prompt, ids))
    rows = [TraceRequest(1, 0, n, 1, array("q", ids)) for n, ids in plain]
    assert list(collector.watch(rows)) == rows
    found = collector.figures()
    tokens = max(1, sum(n for n, _ in plain))
    assert found.token_hit_ratio == token_hits(plain, 4, None) / tokens
    assert found.lru[0].token_hit_ratio == token_hits(plain, 4, capacity) / tokens
    occurrences: dict[int, int] = {}
    for _, ids in plain:
        for block in ids:
            occurrences[block] = occurrences.get(block, 0) + 1
    assert found.single_use_blocks == sum(count == 1 for count in occurrences.values())


def test_one_arrival_has_no_rate():
    found = arrival_figures(np.array([0]))
    assert found.rate_per_s is found.cv is found.dispersion_60s is found.longest_gap_s is None
    assert found.busiest_minute == 1


def test_an_empty_sample_has_a_count_only():
    assert spread(np.zeros(0)).count == 0
    assert spread(np.zeros(0)).p99 is None
