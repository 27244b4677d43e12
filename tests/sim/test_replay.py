"""`kilburn replay` from the outside: summary, JSON, exit codes."""

import json
import os
import re
import subprocess
import sys

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from engine.core.errors import InvariantError
from sim.cli import replay as command
from sim.config import build_config
from sim.pool import activation_bytes, pool_budget
from sim.replay import replay, resolve
from sim.report.terminal import render
from tests.conftest import DATA, ROOT
from traces.figures import encode_figures
from traces.formats import open_trace
from traces.stats import Spread

SAMPLE = str(DATA / "azure_sample.csv")


@pytest.fixture
def kilburn():
    app = typer.Typer()
    app.command()(command)

    def call(*args: str):
        return CliRunner().invoke(app, [*args])

    return call


def words(text: str) -> str:
    return " ".join(text.split())


def test_summary_shows_counts_span_latency_and_memory(kilburn):
    result = kilburn(SAMPLE)
    assert result.exit_code == 0, result.output
    text = words(result.output)
    for part in (
        "Llama-3.1-8B in bf16 on A100-80",
        "6 rows; first arrival 0 s, last 61.877 s, span 61.877 s",
        "6 submitted: 6 done, 0 rejected, 0 unfinished",
        "output tokens/s",
        "TTFT",
        "TPOT",
        "end to end",
        "used",
        "allocated, unused",
        "free",
        "preemptions",
    ):
        assert part in text


def test_a_latency_above_a_thousand_seconds_has_a_separator(kilburn, tmp_path):
    trace = tmp_path / "long.jsonl"
    trace.write_text(
        '{"format":"kilburn-trace","version":1}\n{"arrival_ns":0,"num_prompt":10,"num_output":120000}\n'
    )
    result = kilburn(str(trace), "--model", "Llama-3.1-8B", "--hardware", "A100-80")
    assert result.exit_code == 0, result.output
    (line,) = (each for each in result.output.splitlines() if each.startswith("end to end"))
    assert re.search(r" \d{1,3},\d{3}\.\d\d s", line), line


def test_promises_are_judged_and_told_everywhere(kilburn, tmp_path):
    out = tmp_path / "o.json"
    asked = ("--num-blocks", "200", "--slo", "ttft=100ms,tpot=11.2ms,goodput=50%")
    result = kilburn(SAMPLE, *asked, "--json", str(out), "--html", str(tmp_path / "o.html"))
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    kept = report["goodput"]
    assert (kept["judged"], kept["meets"]) == (6, False), "the request that was rejected is judged"
    assert kept["good"] < min(kept["within"].values())
    assert kept["good_per_s"] == kept["good"] / report["throughput"]["simulated_s"]
    (said,) = (f["sentence"] for f in report["findings"] if f["code"] == "goodput")
    assert f"{kept['good']} of 6, by themselves TTFT {kept['within']['ttft']}, TPOT" in said
    assert said.endswith("ttft_p99=100ms,tpot_p99=11.2ms,goodput=0.5 is not kept.")
    assert words(said).removesuffix(".") in words(result.output)
    assert said in (tmp_path / "o.html").read_text().replace("\u00a0", " ")
    lines = (tmp_path / "o-csv" / "figures.csv").read_text()
    assert f"goodput.good,{kept['good']}\n" in lines
    assert "goodput.slo.clauses" not in lines, "a list has no line of its own"
    assert "goodput" not in kilburn(SAMPLE).output
    assert kilburn(SAMPLE, "--slo", "goodput=95%").exit_code == 2


def test_json_holds_every_figure_and_counts_add_up(kilburn, tmp_path):
    out = tmp_path / "out.json"
    assert kilburn(SAMPLE, "--json", str(out), "--num-blocks", "200").exit_code == 0
    report = json.loads(out.read_text())
    counts = report["requests"]
    assert counts["submitted"] == 6 == counts["done"] + sum(counts["rejected"].values())
    assert counts["rejected"] == {"pool_exceeded": 1}
    assert report["trace"]["rows"] == 6
    assert report["ttft_ms"]["count"] == 5
    assert report["tpot_ms"]["count"] == 4, "one answer has a single token"
    assert report["throughput"]["output_tokens"] == 14 + 3 + 250 + 1 + 90
    memory = report["memory"]
    shares = memory["mean_used_tokens"] + memory["mean_unused_tokens"] + memory["mean_free_tokens"]
    assert shares == pytest.approx(memory["pool_tokens"])
    assert report["config"]["settings"]["num_blocks"] == 200
    assert report["config"]["hardware"]["source"]
    assert re.fullmatch(r"[0-9a-f]{64}", report["config_sha256"])
    assert re.fullmatch(r"[0-9a-f]{64}", report["trace"]["sha256"])
    lengths = {len(series) for series in report["over_time"].values()}
    assert len(lengths) == 1


def test_two_runs_give_the_same_bytes_whatever_the_hash_seed(tmp_path):
    program = "import sys, typer; from sim.cli import replay; typer.run(replay)"
    outputs = []
    for seed in ("0", "1"):
        out = tmp_path / f"{seed}.json"
        subprocess.run(
            [sys.executable, "-c", program, SAMPLE, "--json", str(out)],
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
        outputs.append(out.read_bytes())
    assert outputs[0] == outputs[1]


def test_replay_imports_no_torch():
    program = (
        "import sys, sim.cli, sim.replay, sim.report.terminal; sys.exit('torch' in sys.modules or"
        " 'starlette' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--hardware", "H10O"], "unknown hardware 'H10O' (did you mean H100?)"),
        (["--model", "llama-9"], "unknown model 'llama-9'"),
        (["--block-size", "0"], "--block-size: expected a whole number of at least 1"),
        (["--num-blocks", "0"], "--num-blocks: expected a whole number of at least 1"),
        (["--kv-gb", "0"], "--kv-gb: expected a number above 0"),
        (["--utilisation", "2"], "--utilisation: expected a number of at most 1"),
        (
            ["--dtype", "bf17"],
            "--dtype: unknown value 'bf17' (did you mean bf16?); known are fp32, fp16, bf16",
        ),
        (["--watermark", "1"], "--watermark"),
        (["--token-budget", "9"], "--token-budget (9) must be at least --max-batch (256)"),
        (["--model", "Qwen3-32B", "--hardware", "L4"], "leaves no room for a KV block"),
        (["--num-blocks", "5", "--kv-gb", "5"], "either --num-blocks or --kv-gb"),
        (["--json", "/nowhere/at/all.json"], "cannot be written"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_exit_2(kilburn, args, message):
    result = kilburn(SAMPLE, *args)
    assert result.exit_code == 2
    assert message in words(result.stderr)
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output


def test_a_broken_row_is_told_and_the_others_replayed(kilburn, tmp_path):
    path = tmp_path / "broken.csv"
    path.write_bytes(
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,10,5\nyesterday,1,1\n"
    )
    result = kilburn(str(path), "--json", str(tmp_path / "out.json"))
    assert result.exit_code == 0
    assert "line 3: TIMESTAMP 'yesterday' is not a time" in words(result.output)
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["trace"]["bad"] == {"bad_timestamp": 1}
    assert report["trace"]["rows"] == 2
    assert report["requests"]["done"] == 1

    strict = kilburn(str(path), "--strict")
    assert strict.exit_code == 2
    assert "line 3: TIMESTAMP 'yesterday'" in words(strict.stderr)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "the trace has no requests"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\nx,y,z\n", "none of the trace's 1 rows"),
        (b"who,what\n", "expected a CSV header"),
    ],
)
def test_a_trace_without_requests_is_refused(kilburn, tmp_path, data, message):
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    result = kilburn(str(path))
    assert result.exit_code == 2
    assert message in words(result.stderr)


def test_all_rejected_is_a_result_not_an_error(kilburn):
    result = kilburn(SAMPLE, "--max-context", "5")
    assert result.exit_code == 0
    assert "6 rejected (6 context_exceeded)" in words(result.output)


def test_a_preset_sets_what_no_flag_says(kilburn, tmp_path):
    out = tmp_path / "figures.json"
    given = kilburn(SAMPLE, "--preset", "vLLM", "--max-batch", "8", "--json", str(out))
    assert given.exit_code == 0, given.output
    settings = json.loads(out.read_bytes())["config"]["settings"]
    assert (settings["watermark"], settings["max_batch"]) == (0.0, 8)
    unknown = kilburn(SAMPLE, "--preset", "vlm")
    assert unknown.exit_code == 2
    assert "did you mean vllm" in words(unknown.output + unknown.stderr)


def test_the_pool_is_what_memory_leaves():
    resolved = resolve(build_config(hardware="A100-80"))
    pool = resolved.pool
    left = int(81920 * 2**20 * 0.9) - 2 * 8_030_261_248 - pool.activation_bytes - 768 * 2**20
    assert pool.block_bytes == 16 * 131_072
    assert pool.num_blocks == left // pool.block_bytes


def test_a_pool_of_given_bytes_is_whole_blocks():
    resolved = resolve(build_config())
    pool = pool_budget(
        resolved.hardware,
        resolved.model,
        dtype="bf16",
        kv_dtype="fp8",
        block_size=16,
        token_budget=1,
        max_batch=1,
        utilisation=0.9,
        kv_gb=1.0,
    )
    assert pool.given
    assert pool.num_blocks == 10**9 // (16 * 65_536)


def test_activations_grow_with_budget_and_batch():
    model = resolve(build_config()).model
    base = activation_bytes(model, "bf16", 2048, 256)
    assert activation_bytes(model, "bf16", 4096, 256) > base
    assert activation_bytes(model, "bf16", 2048, 512) > base


def test_a_figure_that_is_not_a_number_is_an_error():
    report = replay(open_trace(DATA / "azure_sample.csv"), resolve(build_config()))
    encode_figures(report)
    broken = type(report)(
        **{f: getattr(report, f) for f in report.__struct_fields__}
        | {"e2e_ms": Spread(count=1, mean=float("nan"))}
    )
    with pytest.raises(InvariantError):
        encode_figures(broken)


MOONCAKE = DATA / "mooncake_sample.jsonl"


def replayed(path, **settings):
    return replay(open_trace(path), resolve(build_config(**settings)))


def test_prefix_cache_shares_blocks_of_equal_content():
    settings = {"max_context": 131_072, "hardware": "H200", "time_scale": 10.0}
    on, off = replayed(MOONCAKE, **settings), replayed(MOONCAKE, prefix_cache=False, **settings)
    assert on.memory.prefix_hits_tokens > 0
    assert on.memory.prefix_hits_tokens <= on.memory.prefix_queries_tokens
    computed = on.throughput.computed_tokens + on.memory.prefix_hits_tokens
    assert computed == off.throughput.computed_tokens
    assert on.memory.mean_cached_tokens > 0 == off.memory.mean_cached_tokens
    assert off.memory.prefix_hit_share is None or off.memory.prefix_hits_tokens == 0


def test_answers_in_parallel_multiply_output_and_share_the_prompt():
    one, four = (
        replayed(DATA / "azure_sample.csv"),
        replayed(DATA / "azure_sample.csv", num_sequences=4),
    )
    assert four.throughput.output_tokens == 4 * one.throughput.output_tokens
    assert four.requests.done == one.requests.done
    assert four.memory.mean_used_tokens < 4 * one.memory.mean_used_tokens


def printed(report) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(render(report, 100))
    return words(capture.get())


def test_the_top_of_a_chart_is_told_as_a_mean_of_its_bins():
    report = replayed(DATA / "azure_sample.csv")
    series = report.over_time
    found = re.search(r"running, ([\d.]+) s means to ([\d.]+)", printed(report))
    assert found is not None
    assert float(found[1]) == pytest.approx(series.end_s[0], rel=0.05)
    assert float(found[2]) == pytest.approx(max(series.running), abs=0.05)


def test_replicas_share_the_requests_and_their_pools_add_up():
    one, two = replayed(DATA / "azure_sample.csv"), replayed(DATA / "azure_sample.csv", replicas=2)
    assert two.requests == one.requests
    assert two.memory.pool_tokens == 2 * one.memory.pool_tokens
    memory = two.memory
    parts = memory.mean_used_tokens + memory.mean_unused_tokens + memory.mean_cached_tokens
    assert parts + memory.mean_free_tokens == pytest.approx(memory.pool_tokens)
    said = [printed(each) for each in (one, two)]
    assert "a replica; 2 replicas, round-robin" in said[1]
    assert "blocks of a replica; " in said[1]
    assert "replica" not in said[0]


@pytest.mark.parametrize("preemption", ["swap", "auto"])
def test_swapping_moves_blocks_and_loses_no_request(tmp_path, preemption):
    path = tmp_path / "growing.csv"
    rows = [f"2024-05-02 00:00:0{i},16,200" for i in range(6)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    settings = {"num_blocks": 30, "arrivals": "at-once", "watermark": 0.0, "host_gb": 1.0}
    report = replayed(path, preemption=preemption, link_gb_per_s=1000, **settings)
    assert report.batch.swaps > 0
    assert report.batch.link_busy_share > 0
    assert report.requests.done == 6
    assert report.throughput.computed_tokens < 6 * 216 + 100, "little is computed again"
