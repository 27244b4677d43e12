"""Predicts measured runs of another engine, vLLM, on cards that this project has never had.

The twin gets the card's datasheet, the model's shape, vLLM's default settings and the pool's size; the constants of its roofline are those of
every other device. Prints latencies beside the measured ones. The runs are those of `vllm_runs.toml`; all of them have the arrivals of the
first, and its requests' lengths unless they bring their own. Its own records give latencies of each request, and KV usage and queues by the
second: they are drawn over the predicted ones into `build/predict_vllm.html`. Does nothing where the trace is absent: set KILBURN_TRACES to the folder that holds it.
"""

import argparse
import csv
import gzip
import json
import os
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.config import build_config
from sim.presets import preset
from sim.replay import replay, resolve
from sim.report.figures import ReplayReport
from traces.formats import open_trace
from traces.stats import Spread, spread

RUN = "vllm_rtx4090_llama31_8b"
ROOT = Path(__file__).resolve().parent.parent
PARTS = ("mean", "p50", "p90", "p99")
LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")


def find_run() -> Path | None:
    folders = [
        os.environ.get("KILBURN_TRACES"),
        ROOT / "shared/traces",
        ROOT.parent / "shared/traces",
    ]
    for folder in folders:
        if folder and (Path(folder) / RUN / "requests.jsonl.gz").is_file():
            return Path(folder) / RUN
    return None


def runs_of(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        runs: list[dict[str, Any]] = tomllib.load(file)["run"]
    return runs


def spreads(run: Path) -> dict[str, Spread]:
    """Latencies in ms, from when the engine queued a request."""
    with gzip.open(run / "requests.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    queued, first, last, tokens = (
        np.array([row[name] for row in rows], np.float64)
        for name in ("queued_s", "first_token_s", "last_token_s", "output_length")
    )
    several = tokens > 1
    tpot = ((last - first)[several] / (tokens[several] - 1)) * 1e3
    return {
        "ttft_ms": spread((first - queued) * 1e3),
        "tpot_ms": spread(tpot),
        "e2e_ms": spread((last - queued) * 1e3),
    }


def measured(folder: Path, run: dict[str, Any]) -> dict[str, float]:
    """`ttft_ms_mean` and so on: as the list of runs tells them, or from the run's own records."""
    if "measured" in run:
        return dict(run["measured"])
    return {
        f"{name}_{part}": getattr(values, part)
        for name, values in spreads(folder).items()
        for part in PARTS
    }


def predict(folder: Path, run: dict[str, Any]) -> ReplayReport:
    resolved = resolve(build_config(**preset("vllm") | run["settings"]))
    requests = folder / "requests.jsonl.gz"
    if "lengths" not in run:
        return replay(open_trace(requests), resolved)
    with tempfile.TemporaryDirectory() as scratch:
        changed = Path(scratch) / "requests.jsonl"
        changed.write_text(with_lengths(requests, ROOT / "benchmarks" / run["lengths"]))
        return replay(open_trace(changed), resolved)


def with_lengths(requests: Path, lengths: Path) -> str:
    """A trace of the same arrivals; `lengths` has a prompt's and an answer's tokens by turns."""
    numbers = iter(map(int, lengths.read_text().split()))
    with gzip.open(requests, "rt") as lines:
        arrivals = [json.loads(line)["timestamp_ns"] / 1e6 for line in lines]
    rows = [
        {"timestamp": at, "input_length": next(numbers), "output_length": next(numbers)}
        for at in arrivals
    ]
    return "".join(json.dumps(row | {"hash_ids": []}) + "\n" for row in rows)


def compare(real: dict[str, float], report: ReplayReport) -> dict[str, float]:
    """Prints both, and gives predicted over measured, less 1, of every figure."""
    figures: dict[str, float] = {}
    print(f"{'':10}{'':6}{'measured':>12}{'predicted':>12}{'error':>9}")
    for name in LATENCIES:
        for part in PARTS:
            one, two = real[f"{name}_{part}"], getattr(getattr(report, name), part)
            figures[f"{name[:-3]}_{part}_measured_ms"] = one
            figures[f"{name[:-3]}_{part}_predicted_ms"] = two
            figures[f"{name[:-3]}_{part}_error"] = two / one - 1
            print(f"{name[:-3]:10}{part:6}{one:12,.1f}{two:12,.1f}{two / one - 1:9.1%}")
    return figures


def series(run: Path) -> dict[str, list[float]]:
    with (run / "timeseries.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


def draw(real: dict[str, list[float]], report: ReplayReport, name: str, path: Path) -> None:
    """KV usage, running and waiting requests over time, measured and predicted."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    memory = report.over_time
    held = [
        100 * (used + unused) / report.memory.pool_tokens
        for used, unused in zip(memory.used_tokens, memory.unused_tokens, strict=True)
    ]
    rows: Sequence[tuple[str, list[float], list[float]]] = (
        ("KV pool in use, %", real["kv_cache_pct"], held),
        ("running", real["running"], memory.running),
        ("waiting", real["waiting"], memory.waiting),
    )
    figure = make_subplots(rows=3, shared_xaxes=True, subplot_titles=[title for title, *_ in rows])
    for number, (_, one, two) in enumerate(rows, start=1):
        for name, x, y, colour in (
            ("measured", real["t"], one, "#333333"),
            ("predicted", memory.end_s, two, "#d95f02"),
        ):
            line = go.Scatter(x=x, y=y, name=name, line={"color": colour}, showlegend=number == 1)
            figure.add_trace(line, row=number, col=1)
    figure.update_xaxes(title="seconds from the first arrival", row=3, col=1)
    figure.update_layout(title=f"{name}, measured and predicted", height=900)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "benchmarks/vllm_runs.toml")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--html", type=Path, default=ROOT / "build/predict_vllm.html")
    options = parser.parse_args()
    run = find_run()
    if run is None:
        print(
            f"{RUN} was not found: set KILBURN_TRACES to the folder that holds it; nothing compared"
        )
        return
    figures: dict[str, dict[str, float]] = {}
    for number, known in enumerate(runs_of(options.runs)):
        report = predict(run, known)
        print(f"{known['name']} ({known['source']})")
        figures[known["name"]] = compare(measured(run, known), report)
        seconds = report.throughput.simulated_s
        print(f"preemptions {report.batch.preemptions}; simulated {seconds:.1f} s\n")
        if not number:
            draw(series(run), report, known["name"], options.html)
            print(f"curves: {options.html}\n")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
