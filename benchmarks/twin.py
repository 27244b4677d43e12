"""How fast the twin replays the public Azure hour at the defaults, on one core, reading and all percentiles included.

Prints a table; `--json FILE` writes one flat object. Measures process CPU time and wall time of one replay.
"""

import argparse
import json
import os
import resource
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from sim.config import build_config
from sim.replay import replay, resolve
from traces.figures import encode_figures
from traces.formats import open_trace

TRACE = "azure_llm_2023_conv.csv.gz"
ROOT = Path(__file__).resolve().parent.parent


def find_trace() -> Path:
    folders = [
        os.environ.get("KILBURN_TRACES"),
        ROOT / "shared/traces",
        ROOT.parent / "shared/traces",
    ]
    for folder in folders:
        if folder and (path := Path(folder) / TRACE).is_file():
            return path
    raise SystemExit(f"{TRACE} was not found: set KILBURN_TRACES to the folder that holds it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--limit", type=int, help="replay only the first N requests")
    args = parser.parse_args()
    path = find_trace()

    wall, cpu = time.perf_counter(), time.process_time()
    report = replay(open_trace(path), resolve(build_config(limit=args.limit)))
    encode_figures(report)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu

    figures = {
        "azure_requests_per_s": report.requests.submitted / wall,
        "azure_output_tokens_per_s": report.throughput.output_tokens / wall,
        "azure_requests_per_cpu_s": report.requests.submitted / cpu,
        "azure_steps_per_cpu_s": report.throughput.steps / cpu,
        "azure_wall_s": wall,
        "azure_cpu_s": cpu,
        "azure_steps": report.throughput.steps,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(
        f"{report.requests.submitted:,} requests, {report.throughput.output_tokens:,} output tokens"
    )
    for name, value in figures.items():
        print(f"  {name:28} {value:14,.1f}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
