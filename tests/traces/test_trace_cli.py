"""`kilburn trace` from the outside."""

import json

import pytest
from typer.testing import CliRunner

from tests.conftest import DATA
from traces.cli import app


def call(*args: object):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def words(text: str) -> str:
    return " ".join(text.split())


def test_stats_print_and_write_the_figures(tmp_path):
    out = tmp_path / "s.json"
    result = call("stats", DATA / "mooncake_sample.jsonl", "--json", out, "--lru", "2")
    assert result.exit_code == 0, result.output
    assert "4 rows" in result.output
    assert "ideal reuse" in result.output
    figures = json.loads(out.read_text())
    assert figures["stats"]["requests"] == 4
    assert figures["reuse"]["lru"][0]["capacity_blocks"] == 2


def test_converted_traces_have_the_same_figures(tmp_path):
    for name in ("t.jsonl", "t.jsonl.gz", "t.parquet"):
        out = tmp_path / name
        result = call("convert", DATA / "mooncake_sample.jsonl", out)
        assert result.exit_code == 0, result.output
        assert "4 requests" in words(result.output)
        figures = []
        for path in (DATA / "mooncake_sample.jsonl", out):
            written = tmp_path / "s.json"
            assert call("stats", path, "--json", written).exit_code == 0
            figures.append(json.loads(written.read_text()))
        assert figures[0]["stats"] == figures[1]["stats"]
        assert figures[0]["reuse"] == figures[1]["reuse"]


def test_conversion_keeps_sessions(tmp_path):
    out = tmp_path / "t.jsonl"
    assert (
        call("convert", DATA / "sessions_sample.jsonl", out, "--arrivals", "every:9").exit_code == 0
    )
    assert "2, closed loops" in words(call("stats", out).output)


def test_the_same_seed_makes_the_same_bytes(tmp_path):
    paths = [tmp_path / name for name in ("a.jsonl.gz", "b.jsonl.gz", "c.jsonl.gz")]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        args = ("--num", 20, "--sessions", "--arrivals", "poisson:1", "--seed", seed)
        assert call("synth", path, *args).exit_code == 0
    first, same, other = (path.read_bytes() for path in paths)
    assert first == same != other


def test_bad_rows_are_told_when_converting(tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("num_prefill_tokens,num_decode_tokens\n5,6\nfive,6\n")
    result = call("convert", source, tmp_path / "out.jsonl")
    assert result.exit_code == 0
    assert "line 3: num_prefill_tokens is 'five'" in words(result.output)
    strict = call("convert", source, tmp_path / "strict.jsonl", "--strict")
    assert strict.exit_code == 2
    assert "line 3" in strict.stderr
    assert not (tmp_path / "strict.jsonl").exists()


def test_nothing_is_said_of_reuse_where_no_row_has_block_ids(tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp":0,"input_length":9,"output_length":2}\n')
    result = call("stats", trace)
    assert result.exit_code == 0
    assert "ideal reuse" not in result.output


def test_a_recording_of_clients_is_no_trace_and_says_what_makes_one(tmp_path):
    clients = tmp_path / "c.jsonl"
    clients.write_text('{"client":0,"windows":[[0,1.0,1.0,null,0.0,0.0]],"lengths":[]}\n')
    result = call("convert", clients, tmp_path / "out.jsonl")
    assert result.exit_code == 2
    assert f"kilburn trace synth OUT.jsonl --clients {clients}" in words(result.stderr)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["stats", "nowhere.csv"], "there is no such file"),
        (["stats", DATA / "mooncake_sample.jsonl", "--lru", "many"], "--lru: 'many'"),
        (["convert", DATA / "mooncake_sample.jsonl", "out.csv"], "must end in one of"),
        (
            ["convert", DATA / "mooncake_sample.jsonl", "o.jsonl", "--limit", "0"],
            "--limit: expected a whole number of at least 1",
        ),
        (["synth", "out.jsonl", "--num", "5"], "give --arrivals"),
        (
            ["synth", "out.jsonl", "--num", "5", "--arrivals", "poisson:x"],
            "must be a number from one millionth",
        ),
        (
            ["synth", "out.jsonl", "--num", "5", "--arrivals", "at-once", "--prompt", "z"],
            "--prompt",
        ),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_exit_2(args, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(*args)
    assert result.exit_code == 2
    assert message in words(result.stderr)
    assert not list(tmp_path.iterdir())
