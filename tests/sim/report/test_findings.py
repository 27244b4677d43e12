"""Findings: three to six sentences, each with its figure, and each figure the one that the report's numbers give."""

import pytest

from sim.config import build_config
from sim.replay import replay, resolve
from tests.conftest import DATA
from tests.sim.report.crowd import TIGHT, crowd
from traces.formats import open_trace
from traces.report import numbers

SAMPLE = DATA / "azure_sample.csv"


def report_of(path=SAMPLE, **settings):
    return replay(open_trace(path), resolve(build_config(**settings)))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"replicas": 2},
        {"num_blocks": 200},
        {"until_s": 5.0},
        {"system_tokens": 256},
    ],
)
def test_three_to_six_sentences_with_their_figures(settings):
    found = report_of(**settings).findings
    assert 3 <= len(found) <= 6
    assert len({f.code for f in found}) == len(found)
    for finding in found:
        assert finding.sentence.endswith(".")
        assert finding.source.endswith(".")
        assert any(c.isdigit() for c in finding.figure)
        assert finding.figure.removesuffix("/s") in finding.sentence


def finding(report, code):
    return next((f for f in report.findings if f.code == code), None)


def test_paging_is_the_longest_request_over_what_a_running_one_holds():
    report = report_of()
    memory = report.memory
    held = (memory.mean_used_tokens + memory.mean_unused_tokens) / report.batch.mean_running
    longest = 16 * -(-int(report.lengths.total_tokens.max) // 16)
    assert finding(report, "paging").figure == numbers.times(longest / held)


def test_lost_requests_come_first_and_are_all_counted():
    report = report_of(num_blocks=200)
    assert report.findings[0].code == "lost"
    assert report.findings[0].warm
    assert report.findings[0].sentence.startswith(
        "16.7 % of the requests, 1 of 6, did not end as they should"
    )
    assert finding(report_of(), "lost") is None


def test_full_pool_is_said_only_where_it_was_full(tmp_path):
    tight = report_of(crowd(tmp_path), **TIGHT)
    assert 3 <= len(tight.findings) <= 6
    assert finding(tight, "full").warm
    assert finding(tight, "preemptions").figure == f"{tight.batch.preemptions:,}"
    roomy = report_of()
    assert finding(roomy, "full") is None
    assert finding(roomy, "peak").figure == numbers.percent(
        roomy.memory.peak_blocks / roomy.memory.pool_blocks
    )


def test_prefixes_only_where_something_was_shared():
    assert finding(report_of(), "prefixes") is None
    report = report_of(system_tokens=256)
    assert finding(report, "prefixes").figure == numbers.percent(report.memory.prefix_hit_share)


@pytest.mark.parametrize("allocator", ["max", "pow2", "oracle"])
def test_contiguous_memory_is_told_by_what_it_wastes(tmp_path, allocator):
    report = report_of(crowd(tmp_path), num_blocks=400, allocator=allocator, max_context=1024)
    assert 3 <= len(report.findings) <= 6
    assert finding(report, "paging") is None
    assert finding(report, "waste") is None
    said = finding(report, "reservation")
    assert said.figure == numbers.percent(report.memory.used_share_of_allocated)
    assert numbers.percent(report.memory.hindsight.token_states) in said.sentence
