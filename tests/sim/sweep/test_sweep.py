"""`kilburn sweep`: the same points whatever computes them, resumed, and told when they fail."""

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

import sim.sweep.digest
from kilburn import app
from sim.replay import replay, replay_in_full
from sim.report.requests import Rows
from sim.sweep import runner
from sim.sweep.axes import parse_axes, resolve_settings
from sim.sweep.cache import Cache
from sim.sweep.cli import sweep as command
from sim.sweep.result import FIGURES, figures_of
from sim.sweep.runner import sweep
from sim.sweep.workers import Workers
from tests.conftest import DATA, ROOT
from traces.figures import encode_figures
from traces.formats import open_trace
from traces.slo import parse_slo

SAMPLE = DATA / "azure_sample.csv"
AXES = parse_axes(["rate=0.5,1,2", "block_size=8,16", "hardware=A100-80,L4"])


@pytest.fixture
def kilburn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(command)

    def call(*args: str):
        return CliRunner().invoke(app, [str(SAMPLE), *args])

    return call


def run(cache=None, count=1, watch=None, axes=AXES):
    with Workers(count) as workers:
        return sweep(SAMPLE, {}, axes, workers=workers, cache=cache or Cache(None), watch=watch)


def test_each_point_is_the_replay_of_its_settings():
    result = run()
    assert len(result.points) == 12
    for point in result.points:
        report = replay(open_trace(SAMPLE), resolve_settings(point.settings))
        assert point.figures == figures_of(report)
        assert point.config_sha256 == report.config_sha256


def test_bytes_do_not_depend_on_workers_or_cache(tmp_path):
    cache = Cache(tmp_path)
    alone = encode_figures(run())
    assert encode_figures(run(cache, count=2)) == alone
    assert encode_figures(run(cache)) == alone


def test_what_is_cached_is_not_computed_again(tmp_path, monkeypatch):
    cache = Cache(tmp_path)
    first = run(cache, axes=AXES[:1])
    computed = []
    real = runner.replay_point
    monkeypatch.setattr(
        runner, "replay_point", lambda *given: computed.append(given[1]) or real(*given)
    )
    seen = []
    again = run(cache, axes=[*parse_axes(["rate=1,3,0.5"])], watch=seen.append)
    assert [point.settings.shaping.rate_scale for point in computed] == [3.0]
    assert (seen[0].cached, seen[-1].done, seen[-1].total) == (2, 3, 3)
    assert again.points[0].figures == first.points[1].figures


def test_other_limits_are_another_judgement_and_never_that_of_the_cache(tmp_path, monkeypatch):
    cache = Cache(tmp_path)
    spelled = (None, "ttft=2s", "ttft=1us", "ttft=2s,tpot=1us", "ttft_p10=1us,goodput=1%")
    limits = [text and parse_slo(text) for text in spelled]

    def judged(slo, cache):
        with Workers(1) as workers:
            return sweep(SAMPLE, {}, AXES[:1], workers=workers, cache=cache, slo=slo)

    fresh = [encode_figures(judged(slo, Cache(None))) for slo in limits]
    assert [encode_figures(judged(slo, cache)) for slo in limits] == fresh
    monkeypatch.setattr(runner, "replay_point", None)
    assert [encode_figures(judged(slo, cache)) for slo in limits] == fresh
    found = [judged(slo, cache).points[0] for slo in limits]
    assert "good_per_s" not in found[0].figures
    assert found[0].meets is None
    assert found[1].figures["good_per_s"] == found[1].figures["requests_per_s"] > 0
    assert (found[1].meets, found[2].meets, found[4].meets) == (True, False, False)
    assert found[2].figures["good_per_s"] == 0
    assert found[3].figures["good_per_s"] < found[3].figures["good_ttft_per_s"]


def test_goodput_is_that_of_the_rows_of_each_request(tmp_path):
    slo = parse_slo("ttft_p50=2s,tpot_p90=100ms,e2e=20s,goodput=40%")
    kept = []
    for scale in (1.0, 40.0):
        resolved = resolve_settings({"rate_scale": scale, "hardware": "L4", "num_blocks": 200})
        report, done = replay_in_full(open_trace(SAMPLE), resolved, slo=slo)
        rows = list(csv.DictReader(Rows(done.ledger).lines()))
        limits = {"ttft_ms": 2e3, "tpot_ms": 100, "e2e_ms": 2e4}
        good = [
            row["state"] == "done"
            and all(not row[name] or float(row[name]) <= limit for name, limit in limits.items())
            for row in rows
        ]
        assert (report.goodput.good, report.goodput.judged) == (sum(good), len(rows))
        assert report.goodput.good_per_s == sum(good) / report.throughput.simulated_s
        kept.append(report.goodput.good)
    assert len(set(kept)) > 1


def test_a_share_of_good_requests_decides_as_in_a_plan(kilburn, tmp_path):
    for share, verdict in (("", "true"), (",goodput=100%", "false")):
        out = tmp_path / f"o{share}"
        limit = f"ttft_p50=10s,tpot_p1=60ms{share}"
        found = kilburn("--axis", "hardware=L4", "--slo", limit, "--out", str(out))
        assert found.exit_code == 0, found.output
        (row,) = csv.DictReader((out / "sweep.csv").read_text().splitlines())
        assert row["meets"] == verdict
        assert float(row["good_per_s"]) <= float(row["good_tpot_per_s"])
        assert "every limit of ttft_p50=10s" in found.output


def test_a_limit_is_a_flag_as_in_a_replay(kilburn, tmp_path):
    assert kilburn("--limit", "3", "--axis", "block_size=8", "--out", "o").exit_code == 0
    (row,) = csv.DictReader((tmp_path / "o" / "sweep.csv").read_text().splitlines())
    assert row["submitted"] == "3"


def test_other_code_or_another_trace_is_another_key(tmp_path, monkeypatch):
    resolved = resolve_settings({})
    before = sim.sweep.digest.key_of("x", "trace", resolved)
    assert sim.sweep.digest.key_of("x", "trace", resolved) == before
    assert sim.sweep.digest.key_of("x", "other", resolved) != before
    assert sim.sweep.digest.key_of("x", "trace", resolve_settings({"block_size": 8})) != before
    monkeypatch.setattr(sim.sweep.digest, "code_digest", lambda: "other code")
    assert sim.sweep.digest.key_of("x", "trace", resolved) != before


def test_a_point_that_fails_says_why_and_the_rest_go_on(kilburn, tmp_path):
    result = kilburn(
        "--axis", "token_budget=100,2048", "--axis", "model=Llama-3.1-8B,Llama-3.1-70B"
    )
    assert result.exit_code == 1
    (folder,) = (tmp_path / "kilburn-sweep").glob("azure_sample-token_budget+model-*")
    assert f"written to kilburn-sweep/{folder.name}" in result.output
    rows = list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))
    assert [bool(row["error"]) for row in rows] == [True, True, False, True]
    assert "--token-budget (100) must be at least --max-batch (256)" in " ".join(
        result.output.split()
    )
    assert "Llama-3.1-70B" in " ".join(result.output.split())


UNKNOWN = "unknown model 'nope'"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model", "nope", "--axis", "block_size=8,16"], UNKNOWN),
        (["--axis", "model=Llama-3.1-8B,nope"], UNKNOWN),
        (["--axis", "hardware=H100,H1000"], "unknown hardware 'H1000' (did you mean H100?)"),
        (["--axis", "cost=roofline,flat"], "--cost: unknown value 'flat'"),
        (
            ["--axis", "arrivals=poisson:1,poison:2"],
            "--axis arrivals=poison:2: unknown value 'poison:2'",
        ),
        (
            ["--axis", "model=Llama-2-70B,Llama-3.1-70B", "--hardware", "L4"],
            "none of the 2 points can run; model=Llama-2-70B: ",
        ),
    ],
)
def test_what_no_point_can_be_is_one_sentence_before_any_work(kilburn, args, message, monkeypatch):
    monkeypatch.setattr(runner, "replay_point", None)
    result = kilburn(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {message}"), result.stderr


@pytest.mark.parametrize(
    ("text", "args", "message"),
    [
        ("", (), "the file is empty"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", (), "the trace has no requests"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nx,1,1\n", (), "none of the trace's 1 rows"),
        (SAMPLE.read_text() + "\nx,1,1\n", ("--strict",), "TIMESTAMP 'x' is not a time"),
        ("num_prefill_tokens,num_decode_tokens\n5,5\n", (), "it has no arrival times; give"),
    ],
)
@pytest.mark.parametrize("command", ["sweep", "plan"])
def test_a_trace_that_cannot_be_used_is_one_sentence(
    command, text, args, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    trace = tmp_path / "t.csv"
    trace.write_text(text)
    own = ["--slo", "ttft=1s"] if command == "plan" else ["--axis", "block_size=8,16"]
    result = CliRunner().invoke(app, [command, str(trace), *own, *args])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_another_sweep_has_another_folder_and_takes_up_the_same_points(kilburn, tmp_path):
    for axis in ("replicas=1", "replicas=1,2", "replicas=1"):
        assert kilburn("--axis", axis).exit_code == 0
    names = [path.name for path in (tmp_path / "kilburn-sweep").iterdir()]
    assert len(names) == 3
    assert sum(name.startswith("azure_sample-replicas-") for name in names) == 2
    assert len(list((tmp_path / "kilburn-sweep" / "points").iterdir())) == 2


def test_every_row_of_the_trace_is_counted_at_every_point(tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text(SAMPLE.read_text() + "\nyesterday,1,1\n")
    with Workers(1) as workers:
        axes = parse_axes(["num_blocks=200,none", "until_s=none,40"])
        result = sweep(trace, {}, axes, workers=workers, cache=Cache(None))
    for point in result.points:
        figures = point.figures or {}
        ends = ("done", "rejected", "failed", "unfinished")
        assert figures["submitted"] == sum(figures[name] for name in ends)
        if point.settings["until_s"] is None:
            assert (figures["submitted"], figures["bad_rows"]) == (6, 1)
            assert figures["rejected"] == (1 if point.settings["num_blocks"] else 0)


def test_a_failure_is_not_cached(tmp_path):
    trace = DATA / "mooncake_sample.jsonl"
    cache = Cache(tmp_path / "points")
    with Workers(1) as workers:
        result = sweep(trace, {"system_tokens": 9}, [], workers=workers, cache=cache)
    assert "a system prompt cannot be put before" in (result.points[0].error or "")
    assert not list((tmp_path / "points").iterdir())


def test_table_json_and_csv_say_the_same(kilburn, tmp_path):
    out = tmp_path / "other.json"
    result = kilburn("--axis", "replicas=1..2", "--json", str(out), "--out", str(tmp_path / "o"))
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert found == json.loads((tmp_path / "o" / "sweep.json").read_text())
    rows = list(csv.DictReader((tmp_path / "o" / "sweep.csv").read_text().splitlines()))
    assert [int(row["replicas"]) for row in rows] == [1, 2]
    for row, point in zip(rows, found["points"], strict=True):
        for name in FIGURES:
            value = point["figures"][name]
            assert row[name] == ("" if value is None else str(value))
        whole = json.loads((tmp_path / "o" / "points" / f"{point['key']}.json").read_text())
        assert whole["throughput"]["output_tokens_per_s"] == point["figures"]["output_tokens_per_s"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--axis", "nope=1"], "unknown setting 'nope'"),
        (["--set", "hardware=L4", "--axis", "hardware=H100"], "both set and an axis"),
        (["--out", "/proc/nowhere"], "cannot be made"),
    ],
)
def test_a_wrong_flag_is_one_sentence_and_exit_2(kilburn, args, message):
    result = kilburn(*args)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_an_interrupted_sweep_keeps_what_is_done_and_goes_on(tmp_path):
    trace = tmp_path / "long.csv"
    rows = [f"2023-11-16 18:{n // 60:02}:{n % 60:02}.0,300,200" for n in range(400)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows))
    program = (
        "import typer; from sim.sweep.cli import sweep\nif __name__ == '__main__': typer.run(sweep)"
    )
    (tmp_path / "program.py").write_text(program)
    args = [sys.executable, str(tmp_path / "program.py"), str(trace), "--workers", "2"]
    args += ["--axis", "seed=0..40", "--out", str(tmp_path / "out")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(args, env=environment, stderr=subprocess.PIPE, text=True)
    points = tmp_path / "out" / "points"
    while not (points.is_dir() and any(points.glob("*.json"))):
        assert process.poll() is None, "it ended before its first point"
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "run it again to go on" in errors
    assert "Traceback" not in errors
    done = len(list(points.glob("*.json")))
    assert 0 < done < 41
    assert not list(points.glob(".*")), "no half-written file stays"
    seen = []
    with Workers(1) as workers:
        axes = parse_axes(["seed=0..2"])
        sweep(trace, {}, axes, workers=workers, cache=Cache(points), watch=seen.append)
    assert seen[0].cached > 0
