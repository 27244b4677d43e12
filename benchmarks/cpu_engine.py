"""Tokens per second of the live engine on this CPU: decode at 1, 8 and 32 streams, and prefill.

Drives the runner by the real scheduler, with neither loop nor gateway. Decode: greedy, contexts from 128 to 192 tokens; the
time of a step is the median over the steps in which every stream decodes. Prefill: one prompt of 1,024 tokens, median over
the rounds. Rounds of all four are interleaved, so that a busy machine slows all.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig
from engine.core.ids import RequestId, TimeNs
from engine.core.plan import Idle, Plan, Request, Results
from engine.core.scheduler import Scheduler
from engine.executor import NewSequence, SamplingParams
from engine.runner import TorchRunner, build_runner
from engine.weights.load import load_model

STREAMS = (1, 8, 32)
PROMPT, NEW, PREFILL = 128, 64, 1024
NOW = TimeNs(0)


def run(
    runner: TorchRunner, prompts: list[np.ndarray], new_tokens: int
) -> list[tuple[Plan, float]]:
    """Every plan of these requests, and the seconds from asking for it to its commit."""
    scheduler = Scheduler(
        CoreConfig(
            memory=MemoryConfig(num_blocks=runner.num_blocks, block_size=runner.block_size),
            scheduler=SchedulerConfig(max_context=runner.max_context, log=False),
        )
    )
    for i, prompt in enumerate(prompts):
        scheduler.submit(Request(RequestId(i), len(prompt), new_tokens), NOW)
    steps = []
    while True:
        begin = time.perf_counter()
        plan = scheduler.schedule(NOW)
        if isinstance(plan, Idle):
            return steps
        assert isinstance(plan, Plan)
        greedy = SamplingParams(temperature=0.0)
        new = [NewSequence(row, r, prompts[r], greedy) for r, row in plan.admitted]
        tokens = runner.execute(plan, new).tokens
        rows = plan.rows[plan.samples]
        scheduler.commit(plan, Results(rows, tokens, np.zeros(len(rows), np.int8)), NOW)
        steps.append((plan, time.perf_counter() - begin))


def measure(runner: TorchRunner, rounds: int) -> dict[str, float]:
    """Figure name to tokens per second."""
    rng = np.random.default_rng(0)

    def prompt(length: int) -> np.ndarray:
        return rng.integers(3, runner.vocab_size, length).astype(np.int32)

    decode: dict[int, list[float]] = {n: [] for n in STREAMS}
    prefill: list[float] = []
    run(runner, [prompt(16)], 4)
    for _ in range(rounds):
        for n in STREAMS:
            steps = run(runner, [prompt(PROMPT) for _ in range(n)], NEW)
            decode[n] += [seconds for plan, seconds in steps if plan.num_decodes == n]
        prefill += [sum(seconds for _, seconds in run(runner, [prompt(PREFILL)], 1))]
    figures = {f"decode_tok_s_{n}": n / statistics.median(decode[n]) for n in STREAMS}
    return figures | {"prefill_tok_s": PREFILL / statistics.median(prefill)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", type=Path, help="a GGUF file or a folder; the default model if absent"
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    begin = time.perf_counter()
    model = load_model(options.model, options.dtype)
    runner = build_runner(model, num_blocks=1024, max_context=2048, threads=options.threads)
    ready = time.perf_counter() - begin
    figures = measure(runner, options.rounds)
    print(f"{model.name} in {model.dtype}: loaded and packed in {ready:.2f} s")
    for name, value in figures.items():
        print(f"{name:20} {value:8.1f}")
    runner.close()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
