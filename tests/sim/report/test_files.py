"""What `kilburn replay --html` writes: the page, JSON and CSV; the same bytes each time; nothing from the trace is markup."""

import csv
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from sim.cli import replay as command
from tests.conftest import DATA, ROOT

SAMPLE = DATA / "azure_sample.csv"


def kilburn(*args):
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [*map(str, args)])
    assert result.exit_code == 0, result.output
    return result


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_tables_hold_what_the_json_says(tmp_path):
    kilburn(SAMPLE, "--html", tmp_path / "run.html", "--num-blocks", 200)
    report = json.loads((tmp_path / "run.json").read_text())
    folder = tmp_path / "run-csv"
    requests = rows(folder / "requests.csv")
    assert [r["state"] for r in requests].count("done") == report["requests"]["done"]
    assert [r["why"] for r in requests if r["state"] == "rejected"] == ["pool_exceeded"]
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        times = [float(r[name]) for r in requests if r[name]]
        assert len(times) == report[name]["count"]
        assert np.percentile(times, 99) == pytest.approx(report[name]["p99"], abs=1e-5)
        distribution = rows(folder / f"{name}.csv")
        assert float(distribution[-1][name]) == pytest.approx(report[name]["max"])
        half = next(r for r in distribution if float(r["share"]) == 0.5)
        assert float(half[name]) == pytest.approx(report[name]["p50"])
    series = rows(folder / "over_time.csv")
    assert len(series) == len(report["over_time"]["end_s"])
    figures = {r["figure"]: r["value"] for r in rows(folder / "figures.csv")}
    assert figures["memory.peak_blocks"] == str(report["memory"]["peak_blocks"])
    assert figures["ttft_ms.p99"] == str(report["ttft_ms"]["p99"])


def test_a_page_that_cannot_be_written_is_told_before_the_replay(tmp_path, monkeypatch):
    monkeypatch.setattr("sim.replay.replay_in_full", None)  # not called
    app = typer.Typer()
    app.command()(command)
    page = tmp_path / "absent" / "run.html"
    result = CliRunner().invoke(app, [str(SAMPLE), "--html", str(page)])
    assert result.exit_code == 2
    assert "make it first" in result.output.replace("\n", " ")


def test_same_bytes_whatever_the_hash_seed(tmp_path):
    written = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        code = "import sys; from kilburn import app; app(sys.argv[1:])"
        subprocess.run(
            [sys.executable, "-c", code, "replay", str(SAMPLE), "--html", str(folder / "r.html")],
            check=True, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True,
        )  # fmt: skip
        written.append(
            {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        )
    assert written[0] == written[1]
    assert {"r.html", "r.json", "r-csv/requests.csv"} <= set(written[0])


def test_name_of_a_trace_is_no_markup(tmp_path):
    trace = tmp_path / "a<b onload=x>&.csv"
    shutil.copy(SAMPLE, trace)
    kilburn(trace, "--html", tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert "<b onload" not in page
    assert "a&lt;b onload=x&gt;&amp;.csv" in page


def test_csv_and_json_alone(tmp_path):
    kilburn(SAMPLE, "--csv", tmp_path / "figures", "--json", tmp_path / "only.json")
    assert (tmp_path / "figures" / "requests.csv").exists()
    assert (tmp_path / "only.json").exists()


def test_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "taken").write_text("")
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [str(SAMPLE), "--csv", str(tmp_path / "taken")])
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
