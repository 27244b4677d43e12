"""What share of the KV memory holds token states: paged memory beside contiguous baselines, under one scheduler (Kwon et al., figure 2).

OPT-13B in 16 bits on an A100-40GB with 15,700 KV positions, first turns of ShareGPT of at most 2,048 tokens, Poisson arrivals at a rate
that keeps somebody waiting. Shares are of the pool, over the whole run, which is cut off while requests still come.
"""

import argparse
import json
from pathlib import Path

from sim.config import build_config
from sim.replay import replay, resolve
from sim.report.figures import ReplayReport
from traces.formats import open_trace

SLOTS = 15_700
PAPER = {"max": 20.4, "pow2": 26.8, "oracle": 38.2, "paged": 96.3}
"""Per cent of KV memory that holds token states, read off the paper's figure 2."""
TRACE = "sharegpt_firstturn_lengths.csv.gz"


def measure(trace: Path, allocator: str, *, rate: float, seconds: float, seed: int) -> ReplayReport:
    """One run; contiguous memory in single positions, paged memory in blocks of 16."""
    block_size = 16 if allocator == "paged" else 1
    config = build_config(
        model="OPT-13B",
        hardware="A100-40",
        dtype="fp16",
        kv_dtype="fp16",
        allocator=allocator,
        block_size=block_size,
        num_blocks=SLOTS // block_size,
        max_context=2048,
        prefix_cache=False,
        watermark=0.0,
        arrivals=f"poisson:{rate}",
        seed=seed,
        until_s=seconds,
    )
    return replay(open_trace(trace), resolve(config))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path, help=f"{TRACE}, or any trace of lengths")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=1800.0, help="simulated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    figures: dict[str, float] = {}
    print(
        "per cent of the pool   states  paper  reserved  internal  rounding   free  running  req/s"
    )
    for name, paper in PAPER.items():
        report = measure(args.trace, name, rate=args.rate, seconds=args.seconds, seed=args.seed)
        part = report.memory.hindsight
        row = [part.token_states, part.reserved, part.internal, part.rounding, part.free]
        states, *others = ["-" if share is None else f"{100 * share:.1f}" for share in row]
        reserved, internal, rounding, free = others
        if part.reserved is None:
            reserved = f"{100 * part.unused:.1f}"
        print(
            f"{name:22} {states:>6} {paper:6.1f} {reserved:>9} {internal:>9} {rounding:>9} {free:>6} "
            f"{report.batch.mean_running:8.1f} {report.throughput.requests_per_s:6.2f}"
        )
        figures[f"{name}_states_percent"] = 100 * part.token_states
        figures[f"{name}_paper_ratio"] = 100 * part.token_states / paper
        tail = report.memory.unused_tokens_per_sequence
        if tail is not None:
            half = report.memory.half_block_tokens
            print(f"  unused tail of a sequence: {tail:.1f} positions, half a block is {half:g}")
            figures["paged_tail_tokens"] = tail
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
