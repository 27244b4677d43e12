"""Which table of requests is a report's own, and what is said of answers that differ. Without a server."""

import numpy as np
import pytest

from engine.core.errors import ConfigError
from traces.client.against import read_prediction, told
from traces.client.figures import Against, Answers
from traces.client.matched import match, read_rows
from traces.client.outcomes import Outcomes, State
from traces.stats import spread

HEADER = "line,state,why,ttft_ms,tpot_ms,e2e_ms\n"
ROWS = "2,done,,10,5,100.000\n3,done,,20,5,200.000\n4,failed,timeout,,,\n"
OWN = spread(np.array([100.0004, 200.0]))


def read(folder, table, of=OWN, kind="bench"):
    (folder / "requests.csv").write_text(table)
    return read_rows(folder / "report.json", kind, of)


def test_a_table_in_any_order_is_the_report_s_own(tmp_path):
    lines = ROWS.splitlines(keepends=True)
    for table in (ROWS, "".join(reversed(lines))):
        rows = read(tmp_path, HEADER + table)
        assert rows is not None
        assert sorted(rows.keys) == [("2", "0"), ("3", "0"), ("4", "0")]


@pytest.mark.parametrize(
    "table",
    [
        "",
        HEADER,
        HEADER + ROWS.replace("200.000", "250.000"),
        HEADER + ROWS + "5,done,,10,5,150\n",
        HEADER + ROWS.replace("3,done", "x,done"),
        HEADER + ROWS.replace("3,done", ",done"),
        HEADER + ROWS.replace("200.000", ""),
        HEADER + ROWS.replace("200.000", "inf"),
        HEADER.replace("line", "request") + ROWS,
        HEADER + "2\n3\n",
        HEADER.replace("e2e_ms", "total_ms") + ROWS,
    ],
)
def test_the_table_of_another_run_or_version_is_not_taken(tmp_path, table):
    assert read(tmp_path, table) is None


def test_a_report_without_answers_has_a_table_without(tmp_path):
    rows = read(tmp_path, HEADER + "4,failed,timeout,,,\n", spread(np.array([])))
    assert rows is not None
    assert rows.states == ["failed: timeout"]


def test_a_line_that_is_there_twice_is_matched_once(tmp_path):
    table = HEADER + "2,done,,1,1,100\n2,done,,2,1,200\n"
    rows = read(tmp_path, table)
    assert rows is not None
    outcomes = Outcomes()
    number = outcomes.send(2, 0, 0, 1, 2)
    outcomes.first_ns[number], outcomes.last_ns[number], outcomes.end_ns[number] = 1, 2, 2
    outcomes.output[number], outcomes.state[number] = 2, State.DONE
    found = match(rows, "bench", outcomes)
    assert (found.common, found.left_out) == (1, 1)
    assert found.there["e2e_ms"].mean == 100
    assert [(each.line, each.measured) for each in found.listed] == [(2, "not there")]


@pytest.mark.parametrize(("measured", "verb"), [(0, "are"), (1, "is"), (2, "are")])
def test_one_answer_is_told_in_the_singular(measured, verb):
    answers = Answers(measured=measured, predicted=5, compared=None, left_out=None, listed=[])
    against = Against(
        kind="bench", title="", differences=[], answers=answers, figures=[], distributions={}
    )
    assert told(against).startswith(f"There {verb} {measured} answer{'s' * (measured != 1)} here")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"kind": "sweep", "points": []}', "the JSON of a `kilburn sweep`, which holds no single run"),
        ('{"kind": "plan"}', "the JSON of a `kilburn plan`, which holds no single run"),
        ('{"kind": "replay", "trace": {}}', "JSON of a `kilburn replay` that lacks figures"),
        ('{"a": 1}', "JSON, but not of a run"),
        ('["a"]', "no JSON of a run"),
        ("a,b\n1,2\n", "no JSON of a run"),
        ("[" * 100_000, "no JSON of a run"),
    ],
)  # fmt: skip
def test_what_is_no_report_is_told_apart_in_one_sentence(tmp_path, text, what):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as found:
        read_prediction(path)
    said = found.value.message
    assert said.startswith(f"--against {path}: this is {what}")
    assert said.endswith(
        "needed is what `kilburn replay --json FILE` or `kilburn bench --json FILE` writes"
    )
    assert not any(mark in said for mark in ("$", "Object", "Expected"))
