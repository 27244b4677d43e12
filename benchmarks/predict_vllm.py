"""Predicts a measured run of another engine: vLLM 0.19.0, Llama-3.1-8B in bf16 on one RTX 4090, 300 requests, a full and preempting KV pool.

The twin gets the card's datasheet, the model's shape, vLLM's default settings and 2,588 blocks; the constants of its roofline are those of
every other device. Prints latencies beside the measured ones, and draws KV usage and queues over the measured curves into
`build/predict_vllm.html`. Does nothing where the trace is absent: set KILBURN_TRACES to the folder that holds it.
"""

import argparse
import csv
import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sim.config import build_config
from sim.presets import preset
from sim.replay import replay, resolve
from sim.report.figures import ReplayReport
from traces.formats import open_trace
from traces.stats import Spread, spread

RUN = "vllm_rtx4090_llama31_8b"
ROOT = Path(__file__).resolve().parent.parent
NUM_BLOCKS = 2588


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


def measured(run: Path) -> dict[str, Spread]:
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


def predict(run: Path) -> ReplayReport:
    settings = {"model": "Llama-3.1-8B", "hardware": "RTX 4090", "num_blocks": NUM_BLOCKS}
    config = build_config(**preset("vllm"), **settings)
    return replay(open_trace(run / "requests.jsonl.gz"), resolve(config))


def compare(real: dict[str, Spread], report: ReplayReport) -> dict[str, float]:
    """Prints both, and gives predicted over measured of every figure."""
    figures: dict[str, float] = {}
    print(f"{'':10}{'':6}{'measured':>12}{'predicted':>12}{'error':>9}")
    for name, values in real.items():
        for part in ("mean", "p50", "p90", "p99"):
            one, two = getattr(values, part), getattr(getattr(report, name), part)
            figures[f"{name[:-3]}_{part}_measured_ms"] = one
            figures[f"{name[:-3]}_{part}_predicted_ms"] = two
            figures[f"{name[:-3]}_{part}_error"] = two / one - 1
            print(f"{name[:-3]:10}{part:6}{one:12,.1f}{two:12,.1f}{two / one - 1:9.1%}")
    return figures


def series(run: Path) -> dict[str, list[float]]:
    with (run / "timeseries.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


def draw(real: dict[str, list[float]], report: ReplayReport, path: Path) -> None:
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
    figure.update_layout(title="vLLM 0.19 on an RTX 4090, measured and predicted", height=900)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--html", type=Path, default=ROOT / "build/predict_vllm.html")
    options = parser.parse_args()
    run = find_run()
    if run is None:
        print(
            f"{RUN} was not found: set KILBURN_TRACES to the folder that holds it; nothing compared"
        )
        return
    report = predict(run)
    figures = compare(measured(run), report)
    draw(series(run), report, options.html)
    print(
        f"preemptions {report.batch.preemptions}; simulated {report.throughput.simulated_s:.1f} s"
    )
    print(f"curves: {options.html}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
