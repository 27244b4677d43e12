"""Azure CSV: times keep their precision in every spelling, and no row vanishes (FR-13)."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import TraceError
from tests.conftest import DATA
from traces.azure import read_azure
from traces.formats import Trace, open_trace, read_trace
from traces.lines import Lines
from traces.schema import BadRow, TraceRequest

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
MS = 1_000_000
FR13_ARRIVALS_MS = (1, 2, 9, 11)


def load(data: bytes, *, strict: bool = False) -> tuple[list[TraceRequest], Trace]:
    trace = read_trace([data], "t.csv", strict=strict)
    return list(trace.requests()), trace


def arrivals(times: list[str]) -> list[int]:
    rows, trace = load(HEADER + "".join(f"{time},10,5\n" for time in times).encode())
    assert not trace.bad_rows
    return [row.arrival_ns for row in rows]


SPELLINGS = {
    "3 digits": "2023-11-16 18:15:46.{:03d}",
    "6 digits": "2023-11-16 18:15:46.{:03d}000",
    "7 digits": "2023-11-16 18:15:46.{:03d}0000",
    "9 digits": "2023-11-16 18:15:46.{:03d}000000",
    "12 digits": "2023-11-16 18:15:46.{:03d}000000999",
    "T and Z": "2023-11-16T18:15:46.{:03d}Z",
    "T and z, 7 digits": "2023-11-16T18:15:46.{:03d}0000z",
    "zone": "2023-11-16 18:15:46.{:03d}+02:00",
    "zone without colon": "2023-11-16T18:15:46.{:03d}-0730",
    "zone of hours": "2023-11-16T18:15:46.{:03d} +02",
    "quoted": '"2023-11-16 18:15:46.{:03d}0000"',
    "spaces around": " 2023-11-16 18:15:46.{:03d} ",
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_sub_second_arrivals_survive_every_spelling(spelling):
    times = [spelling.format(ms) for ms in FR13_ARRIVALS_MS]
    assert arrivals(times) == [0, 1 * MS, 8 * MS, 10 * MS]


def test_times_without_a_fraction_are_whole_seconds():
    assert arrivals(["2023-11-16 18:15:46", "2023-11-16T18:15:47Z"]) == [0, 10**9]


def test_hundred_nanoseconds_are_kept():
    assert arrivals(["2023-11-16 18:15:46.6805900", "2023-11-16 18:15:46.6805901"]) == [0, 100]


def test_time_zones_are_converted_not_dropped():
    times = ["2023-11-16 18:00:00+02:00", "2023-11-16 16:00:01Z", "2023-11-16T11:00:02-05:00"]
    assert arrivals(times) == [0, 10**9, 2 * 10**9]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("2023-11-16 18:15:46.999", "2023-11-16 18:15:47.001"),
        ("2023-11-16 18:15:59.999", "2023-11-16 18:16:00.001"),
        ("2023-11-16 23:59:59.999", "2023-11-17 00:00:00.001"),
        ("2023-12-31 23:59:59.999", "2024-01-01 00:00:00.001"),
        ("2024-02-28 23:59:59.999", "2024-02-29 00:00:00.001"),
    ],
)
def test_order_holds_across_boundaries(before, after):
    assert arrivals([before, after]) == [0, 2 * MS]


def test_a_late_row_is_put_where_it_arrived():
    rows, _ = load(HEADER + b"2023-11-16 18:15:47,1,1\n2023-11-16 18:15:46,2,2\n")
    assert [(row.arrival_ns, row.line) for row in rows] == [(0, 3), (10**9, 2)]


BROKEN = {
    b"2023-11-16 18:15:46,374": ("bad_row", "2 fields"),
    b"2023-11-16 18:15:46,374,44,1": ("bad_row", "4 fields"),
    b'"2023-11-16 18:15:46,374,44': ("bad_row", "not closed"),
    b"2023-11-16,374,44": ("bad_timestamp", "'2023-11-16'"),
    b"2023-02-30 18:15:46,374,44": ("bad_timestamp", "no calendar"),
    b"2023-11-16 24:15:46,374,44": ("bad_timestamp", "no clock"),
    b"2023-11-16 18:15:46+99:00,374,44": ("bad_timestamp", "a day or more"),
    b"2023-11-16 18:15:46,-1,44": ("bad_tokens", "ContextTokens is '-1'"),
    b"2023-11-16 18:15:46,374,4.5": ("bad_tokens", "GeneratedTokens is '4.5'"),
    b"2023-11-16 18:15:46,,44": ("bad_tokens", "ContextTokens is ''"),
    b"2023-11-16 18:15:46,374,2147483648": ("bad_tokens", "2147483647"),
    b"2023-11-16 18:15:46,\xff,44": ("bad_tokens", "ContextTokens"),
    "2023-11-16 18:15:46,٣,44".encode(): ("bad_tokens", "ContextTokens"),
}


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_row_is_counted_with_line_and_reason_and_leaves_the_others(line):
    rows, trace = load(
        HEADER + b"2023-11-16 18:15:46,1,1\n" + line + b"\n2023-11-16 18:15:48,2,2\n"
    )
    code, words = BROKEN[line]
    assert [row.num_prompt for row in rows] == [1, 2]
    assert trace.bad_counts == {code: 1}
    assert trace.bad_rows[0].line == 3
    assert words in trace.bad_rows[0].message


@pytest.mark.parametrize("line", BROKEN)
def test_strict_refuses_a_broken_row_by_line(line):
    with pytest.raises(TraceError, match=r"t\.csv, line 2: ") as raised:
        load(HEADER + line + b"\n", strict=True)
    assert raised.value.line == 2


@pytest.mark.parametrize(
    "header", [b"", b"\n", b"TIMESTAMP,ContextTokens\n", b"hello\n", b"\x00\x01\x02"]
)
def test_a_file_that_is_no_trace_is_refused(header):
    with pytest.raises(TraceError, match=r"empty|first line"):
        load(header)


def test_columns_are_found_by_name():
    rows, _ = load(
        b"\xef\xbb\xbfid,generatedtokens,ContextTokens,Timestamp\nx,5,10,2023-11-16 18:15:46\n"
    )
    assert (rows[0].num_prompt, rows[0].num_output) == (10, 5)


def test_sample_reads_alike_with_any_line_end_and_gzip(tmp_path):
    text = (DATA / "azure_sample.csv").read_bytes()
    spelled = [text, text.replace(b"\r\n", b"\n"), text + b"\r\n", text + b"\r\n\r\n"]
    expected = list(open_trace(DATA / "azure_sample.csv").requests())
    assert len(expected) == 6
    for i, data in enumerate(spelled):
        for packed in (
            data,
            gzip.compress(data),
            gzip.compress(data[:99]) + gzip.compress(data[99:]),
        ):
            path = tmp_path / f"trace{i}"
            path.write_bytes(packed)
            assert list(open_trace(path).requests()) == expected


def test_a_file_and_its_gzip_have_one_digest():
    data = (DATA / "azure_sample.csv").read_bytes()
    digests = set()
    for packed in (data, gzip.compress(data)):
        rows, trace = load(packed)
        assert rows
        digests.add(trace.digest)
    assert len(digests) == 1


@given(st.data())
def test_chunks_of_any_size_give_the_same_rows(data):
    body = HEADER.replace(b"\n", b"\r\n") + b"".join(
        b"2023-11-16 18:15:%02d.%03d,%d,%d\r\n" % (i % 60, i, i + 1, i + 2) for i in range(20)
    )
    body = data.draw(st.sampled_from([body, gzip.compress(body, mtime=0)]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=40)))
    chunks = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    whole = list(read_azure(Lines([body])))
    assert len(whole) == 20
    assert list(read_azure(Lines(chunks))) == whole
    assert list(read_trace(chunks, "t").requests()) == list(read_trace([body], "t").requests())


def test_byte_by_byte_gives_the_same_rows():
    body = gzip.compress((DATA / "azure_sample.csv").read_bytes())
    singles = [body[i : i + 1] for i in range(len(body))]
    assert list(read_trace(singles, "t").requests()) == list(read_trace([body], "t").requests())


def test_junk_after_gzip_is_reported_and_the_rows_before_it_kept():
    packed = gzip.compress(HEADER + b"2023-11-16 18:15:46,1,1\n") + b"junk"
    rows, trace = load(packed)
    assert len(rows) == 1
    assert trace.bad_counts == {"damaged_file": 1}
    assert "not gzip" in trace.bad_rows[0].message


def test_padding_after_gzip_is_no_junk():
    rows, trace = load(gzip.compress(HEADER + b"2023-11-16 18:15:46,1,1\n") + b"\0" * 9)
    assert len(rows) == 1
    assert not trace.bad_counts


def test_a_gzip_that_ends_early_keeps_its_whole_lines():
    body = HEADER + b"".join(b"2023-11-16 18:15:46.%06d,1,1\n" % (i * 7919) for i in range(126))
    packed = gzip.compress(body)
    rows, trace = load(packed[: len(packed) * 3 // 4])
    assert 0 < len(rows) < 126
    assert trace.bad_rows == [BadRow(len(rows) + 2, "damaged_file", "the gzip data ends early")]


@given(st.binary(max_size=300))
def test_junk_behind_good_rows_never_loses_them(junk):
    good = HEADER + b"2023-11-16 18:15:46,1,1\n"
    rows, trace = load(good + junk)
    assert TraceRequest(2, rows[0].arrival_ns, 1, 1) in rows
    lines = [line for line in junk.split(b"\n") if line.strip()]
    assert len(rows) + sum(trace.bad_counts.values()) == 1 + len(lines)


@pytest.mark.parametrize("name", ["nothing.csv", "."])
def test_an_absent_file_and_a_folder_are_said_plainly(tmp_path: Path, name):
    with pytest.raises(TraceError, match=r"no such file|a folder"):
        open_trace(tmp_path / name)


def test_the_public_hour_reads_as_its_description_says(shared_traces):
    trace = open_trace(shared_traces / "azure_llm_2023_conv.csv.gz", strict=True)
    rows = list(trace.requests())
    assert len(rows) == 19_366
    assert sum(row.num_output for row in rows) == 4_088_665
    assert max(row.num_prompt for row in rows) == 14_050
    assert round(rows[-1].arrival_ns / 1e9, 2) == 3501.72
    assert [row.line for row in rows] == list(range(2, 19_368))


@pytest.mark.parametrize("empty", ["0001-01-01 00:00:00", "1970-01-01T00:00:00Z"])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_time_that_stands_for_none_is_bad_alone(empty, place):
    lines = [f"2023-11-16 18:15:{second:02}.0,10,5" for second in (46, 48, 49)]
    lines.insert(place, f"{empty},10,5")
    rows, trace = load(HEADER + "\n".join(lines).encode())
    assert [row.arrival_ns for row in rows] == [0, 2 * 10**9, 3 * 10**9]
    (bad,) = trace.bad_rows
    assert (bad.line, bad.code) == (place + 2, "bad_timestamp")
    years = "2,023" if empty.startswith("0001") else "54"
    assert bad.message == (
        f"the row arrives {years} years before 3 others: its time cannot be right"
    )
    with pytest.raises(TraceError, match=f"line {place + 2}: the row arrives {years} years"):
        load(HEADER + "\n".join(lines).encode(), strict=True)
