"""`kilburn bench` from the outside: a real gateway with known timings, prefixes that hit, a prediction laid over, and an interrupt."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import typer
from typer.testing import CliRunner

from kilburn import app as kilburn
from tests.conftest import ROOT
from tests.gateway.live import live, scripted
from tests.traces.client.stub import Stub, running
from traces.client.cli import bench
from traces.report.numbers import percent

STEP_S = 0.01


def trace_file(folder, rows) -> str:
    path = folder / "t.jsonl"
    lines = ['{"format":"kilburn-trace","version":1,"hash_block_tokens":16}']
    lines += [json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def row(at_s, prompt=24, output=10, ids=None, **fields):
    fields |= {"arrival_ns": round(at_s * 1e9), "num_prompt": prompt, "num_output": output}
    return fields | ({"hash_ids": ids} if ids else {})


def turns(prompts_ids):
    """Rows of one session, so that each finds in the cache what those before it left there."""
    return [
        row(
            0,
            prompt=52,
            ids=ids,
            session=0,
            turn=i,
            **({"after": i - 1, "think_ns": 0} if i else {}),
        )
        for i, ids in enumerate(prompts_ids)
    ]


def call(*args):
    app = typer.Typer()
    app.command()(bench)
    return CliRunner().invoke(app, [*map(str, args)])


def pace(plan) -> None:
    time.sleep(STEP_S)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_gateway_with_known_steps_is_measured_true(tmp_path, endpoint):
    trace = trace_file(tmp_path, [row(0.15 * i, prompt=60) for i in range(6)])
    pieces = [f"word{i} ".encode() for i in range(40)]
    served = scripted(pieces, num_blocks=2048, max_context=2048, pace=pace)
    with live(served) as client:
        result = call(
            client.base_url, trace, "--endpoint", endpoint, "--json", tmp_path / "out.json", "--csv", tmp_path / "csv"
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["requests"]["done"] == 6
    assert report["target"]["model"] == "scripted"
    assert report["target"]["measured_by"] == "/tokenize"
    assert report["honesty"]["output_error"] == 0
    assert abs(report["honesty"]["prompt_error"]) < 0.25
    # A step takes 10 ms and gives a token; a prompt within the budget of 64 tokens takes one or two. A client that reads the first token late
    # sees the others closer together, so only what counts from when the request was due has a lower bound.
    assert report["e2e_ms"]["min"] >= 10 * 1000 * STEP_S - 0.5
    assert report["tpot_ms"]["min"] <= 20_000 * STEP_S
    assert 1000 * STEP_S - 0.5 <= report["ttft_ms"]["min"] <= 100_000 * STEP_S
    with (tmp_path / "csv" / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [r["state"] for r in rows] == ["done"] * 6
    assert {r["output_tokens"] for r in rows} == {"10"}


def test_blocks_that_are_equal_in_the_trace_hit_the_server_s_cache(tmp_path):
    same = trace_file(tmp_path, turns([1, 2, 3, 10 + i] for i in range(4)))
    served = scripted(num_blocks=2048, max_context=2048)
    with live(served) as client:
        result = call(
            client.base_url, same, "--warm-up", 0, "--json", tmp_path / "out.json", "--html", tmp_path / "out.html"
        )  # fmt: skip
        hits = hit_tokens(client)
    assert result.exit_code == 0, result.output
    cached = json.loads((tmp_path / "out.json").read_text())["cached"]
    assert (cached["requests"], cached["cached_tokens"]) == (4, hits)
    assert cached["share"] == hits / cached["prompt_tokens"]
    said = f"{percent(cached['share'])} of prompt tokens were cached"
    assert said in result.output
    assert said in " ".join((tmp_path / "out.html").read_text().replace("\u00a0", " ").split())
    (tmp_path / "b").mkdir()
    other = trace_file(
        tmp_path / "b",
        turns([40 + 4 * i + k for k in range(4)] for i in range(4)),
    )
    with live(scripted(num_blocks=2048, max_context=2048)) as client:
        assert call(client.base_url, other, "--warm-up", 0).exit_code == 0
        assert hit_tokens(client) < hits / 4
    assert hits >= 3 * 40


def hit_tokens(client) -> float:
    for line in client.get("/metrics").text.splitlines():
        if line.startswith("kilburn_prefix_cache_hits"):
            return float(line.split()[-1])
    raise AssertionError("no such metric")


def test_lengths_are_calibrated_by_usage_where_there_is_no_tokenize(tmp_path):
    trace = trace_file(tmp_path, [row(0.05 * i, prompt=100) for i in range(4)])
    with running(Stub()) as url:
        result = call(url, trace, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["target"]["tokens_per_word"] == 1
    assert report["target"]["prompt_offset_tokens"] == 1
    assert report["honesty"]["prompt_error"] == 0
    assert report["cached"] is None, "the server does not say"
    assert "cached" not in result.output


def test_run_is_laid_over_a_prediction(tmp_path):
    trace = trace_file(tmp_path, [row(0.05 * i) for i in range(4)])
    with running(Stub(ttft_s=0.05, gap_s=0.01)) as url:
        assert call(url, trace, "--json", tmp_path / "first.json").exit_code == 0
        result = call(
            url, trace, "--against", tmp_path / "first.json", "--json", tmp_path / "out.json"
        )
        assert result.exit_code == 0, result.output
        first = json.loads((tmp_path / "first.json").read_text())
        against = json.loads((tmp_path / "out.json").read_text())["against"]
        by_name = {f["name"]: f for f in against["figures"]}
        assert by_name["TTFT p50"]["predicted"] == first["ttft_ms"]["p50"]
        assert by_name["TTFT p50"]["error"] == pytest.approx(
            first["ttft_ms"]["p50"] / by_name["TTFT p50"]["measured"] - 1
        )
        assert against["differences"] == []
        assert "other run" in result.output
        (tmp_path / "other").mkdir()
        changed = trace_file(
            tmp_path / "other", [row(0.05 * i, output=9) for i in range(4)]
        ).replace("t.jsonl", "u.jsonl")
        (tmp_path / "other" / "t.jsonl").rename(changed)
        args = (
            "--against",
            tmp_path / "first.json",
            "--json",
            tmp_path / "out.json",
            "--time-scale",
            2,
        )
        result = call(url, changed, *args)
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["against"]["differences"] == [
        "another trace, t.jsonl",
        "time scale 1.0 instead of 2.0",
    ]
    with running(Stub(ttft_s=0.05, gap_s=0.01)) as url:
        result = call(url, changed, *args[:4], "--limit", 3)
    report = json.loads((tmp_path / "out.json").read_text())
    answers = report["against"]["answers"]
    assert (answers["measured"], answers["predicted"], answers["compared"]) == (3, 4, None)
    assert "There are 3 answers here and 4 in the other run; latencies are of all" in " ".join(
        result.output.split()
    )
    assert any("made with another trace" in f["sentence"] for f in report["findings"])


def test_latencies_are_compared_over_what_both_answered(tmp_path):
    trace = trace_file(tmp_path, [row(0.05 * i, output=4 + i) for i in range(4)])
    out = tmp_path / "out.json"
    with running(Stub(ttft_s=0.05, gap_s=0.01)) as url:
        assert call(url, trace, "--html", tmp_path / "first.html").exit_code == 0
        report = json.loads((tmp_path / "first.json").read_text())
        table = tmp_path / "first-csv" / "requests.csv"
        rows = list(csv.DictReader(table.read_text().splitlines()))
        lost = float(rows[2]["e2e_ms"])
        report["e2e_ms"] |= {"count": 3, "mean": (4 * report["e2e_ms"]["mean"] - lost) / 3}
        (tmp_path / "first.json").write_text(json.dumps(report))
        rows[2].update(state="failed", why="timeout", ttft_ms="90000", tpot_ms="", e2e_ms="")
        with table.open("w") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        result = call(url, trace, "--against", tmp_path / "first.json", "--json", out)
        table.write_text(table.read_text().replace("done", "lost"))  # a table of another run
        alone = call(url, trace, "--against", tmp_path / "first.json").output
    assert "4 answers here and 3 in the other run; latencies are of all" in " ".join(alone.split())
    against = json.loads(out.read_text())["against"]
    assert against["answers"] == {
        "measured": 4,
        "predicted": 3,
        "compared": 3,
        "left_out": 1,
        "listed": [{"line": 4, "measured": "done", "predicted": "failed: timeout"}],
    }
    mean = next(f for f in against["figures"] if f["name"] == "TTFT mean")
    answered = [float(r["ttft_ms"]) for r in rows if r["state"] == "done"]
    assert mean["predicted"] == pytest.approx(sum(answered) / 3)
    said = "There are 4 answers here and 3 in the other run; latencies are of the 3 requests that both answered, 1 left out (line 4)."
    assert said in " ".join(result.output.split())
    assert any(said in f["sentence"] for f in json.loads(out.read_text())["findings"])


def test_a_replay_s_requests_are_matched_by_arrival_and_lengths(tmp_path):
    trace = trace_file(tmp_path, [row(0.0), row(0.0), row(0.01), row(0.02, output=9)])
    page, out = tmp_path / "p.html", tmp_path / "out.json"
    args = ["replay", trace, "--html", str(page), "--hardware", "H100"]
    assert CliRunner().invoke(kilburn, args).exit_code == 0
    with running(Stub()) as url:
        assert call(url, trace, "--against", tmp_path / "p.json", "--json", out).exit_code == 0
        answers = json.loads(out.read_text())["against"]["answers"]
        assert (answers["compared"], answers["left_out"], answers["listed"]) == (4, 0, [])
        result = call(url, trace, "--against", tmp_path / "p.json", "--limit", 3, "--json", out)
    answers = json.loads(out.read_text())["against"]["answers"]
    assert (answers["measured"], answers["predicted"], answers["compared"]) == (3, 4, 3)
    assert answers["listed"] == [{"line": None, "measured": "not there", "predicted": "done"}]
    assert "1 left out." in result.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ("--endpoint", "embeddings"),
            "--endpoint: unknown value 'embeddings'; known are completions, chat",
        ),
        (("--timeout-s", "0"), "--timeout-s must be above 0"),
        (("--rate-scale", "-1"), "--rate-scale"),
        (("--against", "t.jsonl"), "this is no JSON of a run; needed is what"),
        ((), "no answer to /v1/models"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, args, words):
    trace = trace_file(tmp_path, [row(0)])
    args = [trace if a == "t.jsonl" else a for a in args]
    result = call("http://127.0.0.1:9", trace, *args)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_run_in_which_everything_fails_has_exit_code_1(tmp_path):
    trace = trace_file(tmp_path, [row(0)])
    with running(Stub()) as url:
        result = call(url, trace, "--model", "500", "--warm-up", 0)
    assert result.exit_code == 1
    assert "http 500" in result.output
    assert "on fire" in result.output


def test_ctrl_c_gives_the_report_so_far(tmp_path):
    trace = trace_file(tmp_path, [row(0), row(0.05), row(600)])
    out = tmp_path / "out.json"
    stub = Stub(ttft_s=0.02, gap_s=600)
    with running(stub) as url:
        code = "import sys; from traces.client.cli import bench; import typer; typer.run(bench)"
        process = subprocess.Popen(
            [sys.executable, "-c", code, url, trace, "--json", str(out), "--warm-up", "0"],
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while len(stub.arrivals) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in said
    counts = json.loads(out.read_text())["requests"]
    assert (counts["submitted"], counts["unfinished"], counts["never_sent"]) == (2, 2, 1)
