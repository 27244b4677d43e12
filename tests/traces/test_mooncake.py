"""Mooncake JSON lines: ids come with the row, ticks stay as they are, broken rows are told apart."""

import re

import pytest

from tests.conftest import DATA
from traces.formats import Trace, open_trace, read_trace


def load(data: bytes) -> tuple[list, Trace]:
    trace = read_trace([data], "t.jsonl")
    return list(trace.requests()), trace


def test_sample_rows_come_in_arrival_order_with_their_ids():
    trace = open_trace(DATA / "mooncake_sample.jsonl")
    rows = list(trace.requests())
    assert trace.format == "mooncake"
    assert trace.hash_block_tokens == 512
    assert [row.arrival_ns // 1_000_000 for row in rows] == [0, 0, 2999, 3000]
    assert [tuple(row.hash_ids) for row in rows] == [(0, 1), (0,), (4,), (0, 1, 2, 3)]


BROKEN = {
    b"{": "not one JSON object",
    b"[]": "does not fit",
    b'{"timestamp": 1, "input_length": 5}': "output_length",
    b'{"timestamp": -1, "input_length": 5, "output_length": 5}': "timestamp",
    b'{"timestamp": 1e400, "input_length": 5, "output_length": 5}': "JSON|timestamp",
    b'{"timestamp": 1, "input_length": "5", "output_length": 5}': r"\$\.input_length",
    b'{"timestamp": 1, "input_length": 5.5, "output_length": 5}': r"\$\.input_length",
    b'{"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": [1, 2]}': "2 ids",
    b'{"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": [null]}': "hash_ids",
}


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_row_is_counted_with_line_and_reason(line):
    good = b'{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": []}\n'
    rows, trace = load(good + line + b"\n" + good)
    assert len(rows) == 2
    assert trace.bad_counts == {"bad_row": 1}
    assert trace.bad_rows[0].line == 2
    assert re.search(BROKEN[line], trace.bad_rows[0].message)


def test_the_public_trace_reads_as_its_description_says(shared_traces):
    trace = open_trace(shared_traces / "mooncake_fast25_conversation.jsonl.gz", strict=True)
    rows = list(trace.requests())
    assert len(rows) == 12_031
    assert sum(len(row.hash_ids) for row in rows) == 288_500
    assert rows[-1].arrival_ns == 3_536_999 * 1_000_000
