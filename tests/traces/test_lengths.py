"""Files of lengths, and of measured runs."""

import pytest

from engine.core.errors import ConfigError
from traces.formats import open_trace, read_trace
from traces.shaping import Shaping, shaped

AZURE_LIKE = b"TIMESTAMP,ContextTokens,GeneratedTokens\nXXX,42,285\nXXX,19,82\n"
VIDUR_LIKE = b"num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n42,285,327,0.1\n19,82,101,0.2\n"
MEASURED = (
    b'{"id": "b-0", "timestamp_ns": 7, "input_length": 33, "output_length": 5, "hash_ids": [0, 1],'
    b' "queued_s": 0.0, "first_token_s": 0.5}\n'
)


@pytest.mark.parametrize("data", [AZURE_LIKE, VIDUR_LIKE, VIDUR_LIKE.replace(b"\n", b"\r\n")])
def test_lengths_without_times_are_recognised(data):
    trace = read_trace([data], "t")
    assert trace.format == "lengths"
    assert not trace.has_arrivals
    rows = list(trace.requests())
    assert [(row.num_prompt, row.num_output, row.arrival_ns) for row in rows] == [
        (42, 285, 0),
        (19, 82, 0),
    ]


def test_lengths_need_an_arrival_process():
    with pytest.raises(ConfigError, match=r"it has no arrival times.*poisson:5"):
        list(shaped(read_trace([AZURE_LIKE], "t"), Shaping()))
    rows = list(shaped(read_trace([AZURE_LIKE], "t"), Shaping(arrivals="every:0.5")))
    assert [row.arrival_ns for row in rows] == [0, 500_000_000]


def test_a_broken_length_is_a_bad_row():
    trace = read_trace([AZURE_LIKE + b"XXX,ten,5\n"], "t")
    assert len(list(trace.requests())) == 2
    assert trace.bad_rows[0].line == 4


def test_a_broken_first_time_does_not_make_a_trace_timeless():
    trace = read_trace([AZURE_LIKE.replace(b"XXX,42", b"soon,42")], "t")
    assert trace.format == "azure"
    assert not list(trace.requests())
    assert trace.bad_counts == {"bad_timestamp": 2}


def test_measured_runs_keep_nanoseconds_and_ids():
    trace = read_trace([MEASURED], "t")
    (row,) = trace.requests()
    assert trace.origin_ns == 7
    assert trace.hash_block_tokens == 16
    assert (row.num_prompt, row.num_output, tuple(row.hash_ids)) == (33, 5, (0, 1))


def test_measured_ids_must_cover_the_full_blocks():
    trace = read_trace([MEASURED.replace(b"[0, 1]", b"[0, 1, 2]")], "t")
    assert not list(trace.requests())
    assert "2 full blocks of 16" in trace.bad_rows[0].message


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("sharegpt_firstturn_lengths.csv.gz", 58_787),
        ("sharegpt_multiturn_8k_lengths.csv.gz", 30_731),
        ("arxiv_summarization_lengths.csv.gz", 28_257),
        ("vllm_rtx4090_llama31_8b/requests.jsonl.gz", 300),
    ],
)
def test_public_files_read_without_a_bad_row(shared_traces, name, rows):
    assert len(list(open_trace(shared_traces / name, strict=True).requests())) == rows
