"""Kilburn's JSON lines and Parquet: what is written is read, and foreign Parquet keeps its times."""

from array import array
from datetime import UTC, datetime, timedelta, timezone

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import ConfigError, TraceError
from traces.formats import open_trace, read_trace
from traces.native import NativeHeader, write_native
from traces.schema import ROOT, TraceRequest
from traces.write import write_trace

ids = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4).map(lambda values: array("q", values))
alone = st.builds(
    TraceRequest,
    st.just(0),
    st.integers(0, 2**50),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    ids,
)


def numbered(rows: list[TraceRequest], first_line: int) -> list[TraceRequest]:
    """As a reader would give them: in order, from the first arrival, with their lines."""
    origin = min((row.arrival_ns for row in rows), default=0)
    placed = [
        TraceRequest(
            line, row.arrival_ns - origin, row.num_prompt, row.num_output, row.hash_ids,
            row.session, row.turn, row.after, row.think_ns,
        )
        for line, row in enumerate(rows, start=first_line)
    ]  # fmt: skip
    return sorted(placed, key=lambda row: row.arrival_ns)


@given(st.lists(alone, max_size=20))
def test_own_lines_come_back(rows):
    data = list(write_native(NativeHeader(hash_block_tokens=16), rows))
    trace = read_trace(data, "t")
    assert list(trace.requests()) == numbered(rows, 2)
    assert trace.hash_block_tokens == 16
    assert not trace.bad_rows


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_every_own_format_keeps_every_field(tmp_path, name):
    rows = [
        TraceRequest(0, 5, 10, 3, array("q", [1, 2]), 0, 0, ROOT, 0),
        TraceRequest(0, 9, 20, 4, array("q", []), 0, 1, 0, 77),
        TraceRequest(0, 6, 30, 1),
    ]
    path = tmp_path / name
    assert write_trace(NativeHeader(hash_block_tokens=512), rows, path) == 3
    trace = open_trace(path, strict=True)
    first_line = 1 if name.endswith("parquet") else 2
    assert list(trace.requests()) == [
        TraceRequest(first_line + i, row.arrival_ns - 5, *_rest(row)) for i, row in enumerate(rows)
    ]
    assert trace.hash_block_tokens == 512
    assert [path.name] == [entry.name for entry in tmp_path.iterdir()]


def _rest(row: TraceRequest) -> tuple:
    return (
        row.num_prompt, row.num_output, row.hash_ids, row.session, row.turn, row.after, row.think_ns
    )  # fmt: skip


def test_own_lines_say_what_does_not_fit():
    header = b'{"format":"kilburn-trace","version":1}\n'
    trace = read_trace(
        [
            header,
            b'{"arrival_ns":0,"num_prompt":1,"num_output":1,"after":0}\n',
            b'{"arrival_ns":0,"num_prompt":1,"num_output":1,"colour":0}\n',
            b'{"arrival_ns":0,"num_prompt":1,"num_output":1}\n',
        ],
        "t",
    )
    assert len(list(trace.requests())) == 1
    assert "after is 0" in trace.bad_rows[0].message
    assert "colour" in trace.bad_rows[1].message


def test_a_header_of_another_version_is_refused():
    with pytest.raises(TraceError, match="line 1: the header does not fit"):
        read_trace([b'{"format":"kilburn-trace","version":2}\n'], "t")


def test_a_recording_with_a_broken_header_is_refused():
    with pytest.raises(TraceError, match="line 1: the header does not fit"):
        read_trace([b'{"type":"kilburn-recording","version":1}\n'], "t")


def test_a_failed_write_leaves_no_file(tmp_path):
    def rows():
        yield TraceRequest(0, 5, 10, 3)
        raise TraceError("bad", file="x")

    with pytest.raises(TraceError):
        write_trace(NativeHeader(), rows(), tmp_path / "t.jsonl")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=r"must end in one of \.jsonl"):
        write_trace(NativeHeader(), [], tmp_path / "t.csv")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_trace(NativeHeader(), [], tmp_path / "none" / "t.jsonl")


LENGTHS = {"ContextTokens": [1, 2, 3, 4], "GeneratedTokens": [5, 6, 7, 8]}
MS = (1, 2, 9, 11)
START = datetime(2023, 11, 16, 23, 59, 59, 995_000, tzinfo=UTC).replace(tzinfo=None)
DATETIMES = {
    "microseconds": pl.Series([START + timedelta(milliseconds=ms) for ms in MS]),
    "milliseconds": pl.Series([START + timedelta(milliseconds=ms) for ms in MS]).cast(
        pl.Datetime("ms")
    ),
    "with a zone": pl.Series(
        [(START + timedelta(milliseconds=ms)).replace(tzinfo=UTC) for ms in MS]
    ).dt.convert_time_zone("Europe/Berlin"),
    "text": pl.Series([str(START + timedelta(milliseconds=ms)) for ms in MS]),
    "text with zones": pl.Series(
        [
            (START + timedelta(milliseconds=ms))
            .replace(tzinfo=UTC)
            .astimezone(timezone(timedelta(hours=ms)))
            .isoformat()
            for ms in MS
        ]
    ),
}


@pytest.mark.parametrize("times", DATETIMES.values(), ids=DATETIMES.keys())
def test_parquet_times_of_any_type_keep_their_precision(tmp_path, times):
    path = tmp_path / "t"
    pl.DataFrame({"TIMESTAMP": times, **LENGTHS}).write_parquet(path)
    rows = list(open_trace(path, strict=True).requests())
    assert [row.arrival_ns for row in rows] == [0, 1_000_000, 8_000_000, 10_000_000]


def test_parquet_of_mooncake_columns(tmp_path):
    path = tmp_path / "t"
    pl.DataFrame(
        {
            "timestamp": [0, 3000],
            "input_length": [600, 5],
            "output_length": [1, 2],
            "hash_ids": [[1, 2], [3]],
        }
    ).write_parquet(path)
    trace = open_trace(path, strict=True)
    assert [(row.arrival_ns, tuple(row.hash_ids)) for row in trace.requests()] == [
        (0, (1, 2)),
        (3_000_000_000, (3,)),
    ]
    assert trace.hash_block_tokens == 512


def test_a_parquet_row_without_a_value_is_bad(tmp_path):
    path = tmp_path / "t"
    pl.DataFrame(
        {
            "TIMESTAMP": ["2023-11-16 18:15:46", None, "late", "2023-11-16 18:15:47"],
            "ContextTokens": [1, 2, 3, None],
            "GeneratedTokens": [1, 2, 3, 4],
        }
    ).write_parquet(path)
    trace = open_trace(path)
    assert len(list(trace.requests())) == 1
    assert trace.bad_counts == {"bad_timestamp": 2, "bad_tokens": 1}
    assert [row.line for row in trace.bad_rows] == [2, 3, 4]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a": [1]}, "its columns are a"),
        ({**LENGTHS, "TIMESTAMP": [1.5] * 4}, "TIMESTAMP holds Float64"),
        ({"num_prompt": ["1"], "num_output": [1]}, "num_prompt holds String"),
        ({"num_prompt": [1], "num_output": [1], "hash_ids": [7]}, "hash_ids holds Int64"),
    ],
)
def test_a_parquet_column_of_a_wrong_type_is_named(tmp_path, columns, words):
    path = tmp_path / "t"
    pl.DataFrame(columns).write_parquet(path)
    with pytest.raises(TraceError, match=words):
        open_trace(path)


def test_a_torn_parquet_file_is_said_plainly(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(TraceError, match="cannot be read as Parquet"):
        open_trace(path)
