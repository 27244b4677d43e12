"""Files and settings that break programs: each is one sentence and exit code 2, whatever the command, and nothing is overwritten."""

import json
from array import array
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.core.errors import ConfigError
from kilburn import app
from tests.conftest import DATA
from traces.native import NativeHeader
from traces.schema import MAX_ARRIVAL_NS, TraceRequest
from traces.transforms import with_arrivals
from traces.write import write_trace

SAMPLE = DATA / "azure_sample.csv"
NESTED = "[" * 100_000
CHAIN = '{"t":0,"type":"subagent","requests":[' * 5_000
SESSION = '{"id":"a","block_size":64,"requests":[' + CHAIN + "]}" * 5_001


def refusal(*args: object) -> str:
    """What a command says that is refused."""
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    return " ".join(result.stderr.split())


def test_a_row_that_is_nested_too_deeply_is_one_bad_row(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"id":"a","block_size":64,"requests":[{"t":0,"type":"s","in":64,"out":5,"hash_ids":[1]}]}\n'
        + SESSION
    )
    result = CliRunner().invoke(app, ["trace", "stats", str(trace)])
    assert result.exit_code == 0, result.output
    assert "line 2: the row is nested too deeply" in result.output
    assert "1 of 2 rows" in result.output


@pytest.mark.parametrize(
    "head", ['{"format":"kilburn-trace","x":', '{"type":"kilburn-recording","x":', '{"x":']
)
def test_a_first_line_that_is_nested_too_deeply_is_refused(tmp_path: Path, head: str) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(head + NESTED)
    refusal("trace", "stats", trace)
    refusal("inspect", trace)
    refusal("replay", SAMPLE, "--model", trace)
    refusal("bench", "http://127.0.0.1:9", SAMPLE, "--against", trace)


@pytest.mark.parametrize(
    "flags",
    [
        ("--json", "t.json"),
        ("--html", "t.json"),
        ("--html", "t.html"),
        ("--record", "t.json"),
        ("--json", "a.json", "--html", "a.json"),
    ],
)
def test_a_replay_overwrites_neither_its_trace_nor_its_own_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = tmp_path / "t.json"
    trace.write_bytes(SAMPLE.read_bytes())
    assert "name" in refusal("replay", "t.json", *flags)
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    assert trace.read_bytes() == SAMPLE.read_bytes()


@pytest.mark.parametrize(
    "args",
    [
        ("trace", "stats", "TRACE", "--json", "TRACE"),
        ("trace", "convert", "TRACE", "TRACE"),
        ("sweep", "TRACE", "--axis", "n=1,2", "--csv", "TRACE"),
        ("plan", "TRACE", "--slo", "ttft=1s", "--html", "TRACE"),
        ("inspect", "TRACE", "--html", "TRACE"),
        ("bench", "http://127.0.0.1:9", "TRACE", "--json", "TRACE"),
        ("bench", "http://127.0.0.1:9", str(SAMPLE), "--against", "TRACE", "--json", "TRACE"),
        ("trace", "synth", "TRACE", "--lengths", "TRACE", "--num", "2", "--arrivals", "at-once"),
        ("trace", "synth", "TRACE", "--clients", "TRACE"),
        ("replay", str(SAMPLE), "--hardware-file", "TRACE", "--json", "TRACE"),
        ("sweep", str(SAMPLE), "--block-table", "TRACE", "--json", "TRACE"),
        ("plan", str(SAMPLE), "--slo", "ttft=1s", "--block-table", "TRACE", "--json", "TRACE"),
    ],
)
def test_no_command_writes_over_what_it_reads(tmp_path: Path, args: tuple[str, ...]) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_bytes(SAMPLE.read_bytes())
    told = refusal(*(str(trace) if arg == "TRACE" else arg for arg in args))
    assert "it is what is read; name another file" in told
    assert trace.read_bytes() == SAMPLE.read_bytes()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--num-blocks", 10**11), "a pool of 100,000,000,000 blocks"),
        (("--limit", 10**30), "--limit"),
        (("--arrivals", "poisson:1e-300"), "one millionth"),
    ],
)
def test_a_number_beyond_reason_is_refused(flags: tuple[object, ...], words: str) -> None:
    assert words in refusal("replay", SAMPLE, *flags)


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    good = tmp_path / "good.parquet"
    made = CliRunner().invoke(app, ["trace", "convert", str(SAMPLE), str(good)])
    assert made.exit_code == 0, made.output
    data = good.read_bytes()
    bad = tmp_path / "bad.parquet"
    for damaged in (data[:-200], data[:4] + bytes(300) + data[304:]):
        bad.write_bytes(damaged)
        assert "cannot be read as Parquet" in refusal("trace", "stats", bad)


def test_arrivals_beyond_the_longest_time_are_refused() -> None:
    rows = [TraceRequest(1, 0, 5, 5), TraceRequest(2, 0, 5, 5)]
    assert [row.arrival_ns for row in with_arrivals(rows, iter([MAX_ARRIVAL_NS]))] == [
        0,
        MAX_ARRIVAL_NS,
    ]
    with pytest.raises(ConfigError, match="146 years"):
        list(with_arrivals(rows, iter([MAX_ARRIVAL_NS + 1])))


def test_a_config_that_is_no_model_is_refused(tmp_path: Path) -> None:
    llama = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2,
        "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 4096,
    }  # fmt: skip
    mixtral = llama | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 9}
    for config, words in (
        (llama | {"num_key_value_heads": 3}, "8, is no multiple of num_key_value_heads, 3"),
        (llama | {"num_key_value_heads": 16}, "is no multiple"),
        (llama | {"num_attention_heads": 100, "num_key_value_heads": 1}, "hidden_size, 64"),
        (mixtral, "num_experts_per_tok is 9, more than num_local_experts, 8"),
    ):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        assert words in refusal("replay", SAMPLE, "--model", path)


@pytest.mark.parametrize(
    "figure", ["memory_mib = 999999999999999", "memory_gb_per_s = inf", "memory_gb_per_s = 1e-300"]
)
def test_a_machine_beyond_reason_is_refused(tmp_path: Path, figure: str) -> None:
    figures = {"memory_mib": "40960", "memory_gb_per_s": "1500", "peak_tflops": "{bf16 = 300}"}
    name, _, value = figure.partition(" = ")
    text = "".join(f"{key} = {figures[key]}\n" for key in figures if key != name)
    path = tmp_path / "more.toml"
    path.write_text(f'[X]\n{name} = {value}\n{text}source = "s"\n')
    assert name in refusal("replay", SAMPLE, "--hardware", "X", "--hardware-file", path)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("bench", "http://[::1", SAMPLE), "http://[::1 is no address of a server"),
        (
            ("trace", "synth", "y.jsonl", "--clients", SAMPLE, "--start-s", "nan"),
            "--start-s must be",
        ),
    ],
)
def test_an_address_or_a_second_that_is_none_is_refused(
    args: tuple[object, ...], words: str
) -> None:
    assert words in refusal(*args)


def test_brackets_in_names_are_text_and_no_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = "[bold]t.csv"
    (tmp_path / trace).write_bytes(SAMPLE.read_bytes())
    for args in (
        ("trace", "stats", trace),
        ("trace", "convert", trace, "[bold]t.jsonl"),
        ("replay", trace, "--record", "[bold]r.jsonl"),
        ("inspect", "[bold]r.jsonl", "--html", "[bold]i.html"),
        ("sweep", trace, "--workers", "1", "--axis", "cost=roofline,table:[/bold]x"),
    ):
        told = CliRunner().invoke(app, list(args))
        assert told.exit_code == (args[0] == "sweep"), told.output
        assert "bold]" in told.output


def test_what_was_never_sent_is_told(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"format":"kilburn-trace","version":1}\n'
        '{"arrival_ns":0,"num_prompt":9,"num_output":90,"session":0}\n'
        '{"arrival_ns":0,"num_prompt":9,"num_output":9,"session":0,"turn":1,"after":0}\n'
    )
    told = CliRunner().invoke(app, ["replay", str(trace), "--until-s", "0.1"]).output
    assert "1 submitted: 0 done, 0 rejected, 1 unfinished; 1 never sent" in " ".join(told.split())


def test_a_plan_without_hardware_is_refused() -> None:
    assert "--hardware names nothing" in refusal(
        "plan", SAMPLE, "--slo", "ttft=1s", "--hardware", " ,"
    )


def test_a_plan_gives_no_advice_that_cannot_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"format":"kilburn-trace","version":1}\n{"arrival_ns":0,"num_prompt":0,"num_output":5}\n'
    )
    args = ("plan", str(trace), "--slo", "ttft=1s", "--quick", "--workers", "1")
    told = CliRunner().invoke(app, args)
    assert told.exit_code == 1
    words = " ".join(told.output.split())
    assert "What could do: a trace without empty prompts" in words
    assert "--only-fitting" not in words


def test_hash_ids_of_more_tokens_than_any_prompt_has_are_refused(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"format":"kilburn-trace","version":1,"hash_block_tokens":99999999999999999999}\n'
        '{"arrival_ns":0,"num_prompt":40,"num_output":5,"hash_ids":[1]}\n'
    )
    assert "hash_block_tokens" in refusal("replay", trace)
    packed = tmp_path / "t.parquet"
    header = NativeHeader(hash_block_tokens=10**20)
    write_trace(header, [TraceRequest(1, 0, 40, 5, array("q", [1]))], packed)
    assert "a hash id covers 100000000000000000000 tokens" in refusal("replay", packed)
