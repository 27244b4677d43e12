"""Agent sessions: who waits for whom, think times, ids that stay apart."""

import json

import pytest

from engine.core.errors import ConfigError
from tests.conftest import DATA
from traces.formats import open_trace, read_trace
from traces.schema import ROOT
from traces.shaping import Shaping, shaped

SAMPLE = DATA / "sessions_sample.jsonl"
SECOND = 10**9


def rows_of(*, strict: bool = False):
    trace = open_trace(SAMPLE, strict=strict)
    return list(trace.requests()), trace


def test_a_chain_waits_turn_by_turn_and_a_sub_agent_runs_beside_its_parent():
    rows, trace = rows_of()
    assert trace.format == "sessions"
    assert trace.hash_block_tokens == 64
    found = [(row.session, row.turn, row.after) for row in rows]
    assert found == [(0, 0, ROOT), (0, 1, 0), (0, 2, 1), (0, 3, 0), (1, 0, ROOT), (1, 1, 0)]


def test_think_times_are_the_recorded_ones_or_follow_from_the_times():
    rows, _ = rows_of()
    # The sub-agent starts at 3 s, half a second after its parent's answer; the last has no think time: 4 - 0 - 1 s.
    assert [row.think_ns / SECOND for row in rows] == [0, 0.5, 0.75, 7.25, 0, 3.0]


def test_recorded_times_count_from_the_session():
    rows, _ = rows_of()
    assert [row.arrival_ns / SECOND for row in rows] == [0, 3, 5, 10, 0, 4]


def test_ids_of_two_sessions_are_different_blocks():
    rows, _ = rows_of()
    assert [tuple(row.hash_ids) for row in rows[:4]] == [(1, 2), (9,), (9, 10), (1, 2, 3)]
    first = {block for row in rows[:4] for block in row.hash_ids}
    assert first.isdisjoint(rows[4].hash_ids)


def test_sessions_need_an_arrival_process():
    with pytest.raises(ConfigError, match=r"sessions have no arrival times; give --arrivals"):
        list(shaped(open_trace(SAMPLE), Shaping()))
    rows = list(shaped(open_trace(SAMPLE), Shaping(arrivals="every:100")))
    assert [row.arrival_ns // SECOND for row in rows] == [0, 3, 5, 10, 100, 104]


def test_open_loop_sends_at_recorded_times_in_order():
    rows = list(shaped(open_trace(SAMPLE), Shaping(arrivals="every:1", open_loop=True)))
    assert [row.arrival_ns // SECOND for row in rows] == [0, 1, 3, 5, 5, 10]
    assert {row.after for row in rows} == {row.session for row in rows} == {ROOT}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_size": 32}, "block_size is 32"),
        (
            {"requests": [{"t": 0, "type": "n", "in": 64, "out": 1, "hash_ids": [1, 2]}]},
            "turn 0 has 2",
        ),
        ({"requests": [{"t": -1, "type": "n", "in": 64, "out": 1, "hash_ids": [1]}]}, "t`"),
        ({"requests": [{"t": 0, "type": "n", "in": "64", "out": 1, "hash_ids": [1]}]}, "in`"),
    ],
)
def test_a_broken_session_is_one_bad_row(change, words):
    lines = SAMPLE.read_text().splitlines()
    broken = json.dumps(json.loads(lines[1]) | change)
    data = "\n".join([lines[0], broken, lines[1]]).encode()
    trace = read_trace([data], "t")
    assert len(list(trace.requests())) == 6
    assert trace.bad_counts == {"bad_row": 1}
    assert trace.bad_rows[0].line == 2
    assert words in trace.bad_rows[0].message


def test_the_public_sessions_read_as_their_description_says(shared_traces):
    trace = open_trace(shared_traces / "claude_code_sessions_a.jsonl.gz", strict=True)
    rows = list(trace.requests())
    assert len(rows) == 5_163
    assert rows[-1].session == 79
    assert sum(row.num_prompt for row in rows) == 657_833_221
    assert sum(row.num_output == 0 for row in rows) == 2
    assert len({block for row in rows for block in row.hash_ids}) == 491_416


def test_a_session_without_requests_is_a_bad_row():
    line = '{"id": "a", "block_size": 64, "requests": []}\n'
    trace = read_trace([line.encode() + SAMPLE.read_bytes()], "t")
    assert len(list(trace.requests())) == 6
    assert [(row.line, row.code) for row in trace.bad_rows] == [(1, "bad_row")]
