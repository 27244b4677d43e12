"""How fast the twin replays public hours of traffic, on one core, from the start of the process to its exit.

`azure_w1_s`, `azure_w8_s`: the Azure hour on one and on eight workers, blocks of 16. `mooncake512_w8_s`: the Mooncake conversation hour on
eight workers, blocks of 512, prefix cache on. Qwen3-32B in FP8 on one H200 a worker, round robin, reading and all percentiles included. Each
replay is a process of its own; figures are the medians of `--repeat` of them. `azure_requests_per_s` and `azure_output_tokens_per_s` are of
the Azure hour at the defaults. `..._cpu_s` is the processor time of the same processes: on a busy machine the steadier figure.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

AZURE = "azure_llm_2023_conv.csv.gz"
MOONCAKE = "mooncake_fast25_conversation.jsonl.gz"
ROOT = Path(__file__).resolve().parent.parent
PEER = {"model": "Qwen3-32B", "hardware": "H200", "dtype": "fp8", "kv_dtype": "fp8"}
RUNS: dict[str, tuple[str, dict[str, object]]] = {
    "azure_w1": (AZURE, PEER | {"block_size": 16}),
    "azure_w8": (AZURE, PEER | {"block_size": 16, "replicas": 8}),
    "mooncake512_w8": (
        MOONCAKE,
        PEER | {"block_size": 512, "replicas": 8, "max_context": 131_072},
    ),
    "azure_defaults": (AZURE, {}),
}


def find_trace(name: str) -> Path:
    folders = [
        os.environ.get("KILBURN_TRACES"),
        ROOT / "shared/traces",
        ROOT.parent / "shared/traces",
    ]
    for folder in folders:
        if folder and (path := Path(folder) / name).is_file():
            return path
    raise SystemExit(f"{name} was not found: set KILBURN_TRACES to the folder that holds it")


def replay_once(name: str) -> None:
    """In the process that is measured: one replay, its JSON encoded; prints what was done."""
    sys.path.insert(0, str(ROOT))
    from sim.config import build_config
    from sim.replay import replay, resolve
    from traces.figures import encode_figures
    from traces.formats import open_trace

    trace, settings = RUNS[name]
    report = replay(open_trace(find_trace(trace)), resolve(build_config(**settings)))
    encode_figures(report)
    done = {
        "requests": report.requests.submitted,
        "done": report.requests.done,
        "output_tokens": report.throughput.output_tokens,
        "steps": report.throughput.steps,
        "plans": report.throughput.plans,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(done))


def measure(name: str) -> dict[str, float]:
    """Seconds of one process, and what it did."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    run = subprocess.run(
        [sys.executable, __file__, "--run", name],
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(run.stdout) | {"s": wall, "cpu_s": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--run", choices=RUNS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        replay_once(args.run)
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    figures: dict[str, float] = {}
    peak = 0.0
    for name in RUNS:
        runs = [measure(name) for _ in range(args.repeat)]
        seconds = median(run["s"] for run in runs)
        peak = max(peak, *(run["peak_mib"] for run in runs))
        if name == "azure_defaults":
            figures["azure_requests_per_s"] = runs[0]["requests"] / seconds
            figures["azure_output_tokens_per_s"] = runs[0]["output_tokens"] / seconds
            continue
        figures[f"{name}_s"] = seconds
        figures[f"{name}_cpu_s"] = median(run["cpu_s"] for run in runs)
        figures[f"{name}_plans"] = runs[0]["plans"]
        figures[f"{name}_steps"] = runs[0]["steps"]
    figures["peak_mib"] = peak
    for key, value in figures.items():
        print(f"  {key:28} {value:14,.2f}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
