"""Tokens per second of the live engine on this CPU: decode at 1, 8 and 32 streams, and prefill.

Drives the runner by the real scheduler, with neither loop nor gateway. Decode: greedy, contexts from 128 to 192 tokens; the
time of a step is the median over the steps in which every stream decodes. Prefill: one prompt of 1,024 tokens, median over
the rounds. Rounds of all four are interleaved, so that a busy machine slows all.

Where `llama-cpp-python` is importable and the model is a GGUF file, llama.cpp runs the same prompts on the same file with as many
threads, turn and turn about; the ratio of a figure is the median over the rounds of ours over theirs in the same round.
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
from engine.weights.pull import default_model
from kernels.cpu.host import physical_cores

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
        new = [NewSequence(row, r, prompts[r], greedy) for r, _, row in plan.admitted]
        tokens = runner.execute(plan, new).tokens
        rows = plan.rows[plan.samples]
        scheduler.commit(plan, Results(rows, tokens, np.zeros(len(rows), np.int8)), NOW)
        steps.append((plan, time.perf_counter() - begin))


class Ours:
    """The engine's runner, as the benchmark sees it."""

    def __init__(self, runner: TorchRunner) -> None:
        self._runner = runner
        run(runner, [np.arange(3, 19, dtype=np.int32)], 4)

    def decode(self, prompts: list[np.ndarray], new_tokens: int) -> list[float]:
        """Seconds of each step that decodes a token of every stream."""
        steps = run(self._runner, prompts, new_tokens)
        return [seconds for plan, seconds in steps if plan.num_decodes == len(prompts)]

    def prefill(self, prompt: np.ndarray) -> float:
        """Seconds to the first token of a prompt, alone."""
        return sum(seconds for _, seconds in run(self._runner, [prompt], 1))


def peer(path: Path | None, threads: int) -> object | None:
    """llama.cpp on the same file, or None where it is not installed."""
    try:
        from _llamacpp import LlamaCpp
    except ImportError:
        return None
    file = path or default_model()
    if file is None or file.suffix != ".gguf":
        return None
    return LlamaCpp(file, threads, max(STREAMS), PREFILL)


def measure(sides: dict[str, object], vocabulary: int, rounds: int) -> dict[str, float]:
    """Figure name to tokens per second, or to a ratio of them; `sides` are "ours" and maybe "llamacpp"."""
    rng = np.random.default_rng(0)
    names = [*(f"decode_tok_s_{n}" for n in STREAMS), "prefill_tok_s"]
    rates: dict[tuple[str, str], list[float]] = {(s, n): [] for s in sides for n in names}
    for _ in range(rounds):
        for n in STREAMS:
            prompts = [rng.integers(3, vocabulary, PROMPT).astype(np.int32) for _ in range(n)]
            for side, engine in sides.items():
                seconds = statistics.median(engine.decode(prompts, NEW))
                rates[side, f"decode_tok_s_{n}"].append(n / seconds)
        prompt = rng.integers(3, vocabulary, PREFILL).astype(np.int32)
        for side, engine in sides.items():
            rates[side, "prefill_tok_s"].append(PREFILL / engine.prefill(prompt))
    figures = {name: statistics.median(rates["ours", name]) for name in names}
    for name in names if "llamacpp" in sides else []:
        pairs = zip(rates["ours", name], rates["llamacpp", name], strict=True)
        figures[f"{name}_llamacpp"] = statistics.median(rates["llamacpp", name])
        figures[f"{name}_vs_llamacpp_ratio"] = statistics.median(a / b for a, b in pairs)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", type=Path, help="a GGUF file or a folder; the default model if absent"
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    begin = time.perf_counter()
    model = load_model(options.model, options.dtype)
    runner = build_runner(model, num_blocks=1024, max_context=2048, threads=options.threads)
    ready = time.perf_counter() - begin
    sides: dict[str, object] = {"ours": Ours(runner)}
    if (other := peer(options.model, options.threads or physical_cores())) is not None:
        sides["llamacpp"] = other
    figures = measure(sides, model.shape.vocab_size, options.rounds)
    print(f"{model.name} in {model.dtype}: loaded and packed in {ready:.2f} s")
    print(f"{'':16} {'ours':>9} {'llama.cpp':>9} {'ratio':>7}")
    for name in [*(f"decode_tok_s_{n}" for n in STREAMS), "prefill_tok_s"]:
        row = (figures.get(name + end) for end in ("", "_llamacpp", "_vs_llamacpp_ratio"))
        print(f"{name:16}", *("" if x is None else f"{x:9.2f}" for x in row))
    runner.close()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
