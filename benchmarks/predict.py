"""Predicts this engine: the twin learns from a recorded run on this CPU, and says what another will be like.

The run that is learnt from has Poisson arrivals, at a rate that climbs, again and again; the one that is predicted comes in bursts, with other
lengths, and is measured `--repeat` times. The former is cut at its climbs, and the latter's repetitions lie between the pieces: a machine that is
shared drifts in speed, and both then see the same of it. Latencies are taken by clients of the engine in this process, without HTTP. Of each
figure the prediction's error is printed beside the spread of repeating the measurement: the largest distance of a repetition from the mean of all,
over that mean. A figure is hit where the error is within 5 %, or within that spread where it is larger. Answers have fixed lengths, so both sides
know them.

`steps_error` tells the machine's drift from faults of the model: what the fit says of the very steps of each repetition, all together, over what
they took, less 1. Nothing is adjusted by it but the last column, `at speed`: the error that would be left had the fit been of a machine as fast as
it was during the repetitions. That column is no prediction.

`other_cpu_share` says how much of the machine other processes took meanwhile: above a few percent it is they who are measured.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig
from engine.core.scheduler import Scheduler
from engine.executor import SamplingParams
from engine.loop import Engine
from engine.requests import Generation
from engine.runner import TorchRunner, build_runner
from engine.tokenizer import Codec
from engine.weights.load import load_model
from sim.fitted import Fit, FittedCost, fit_steps
from sim.recorded_steps import RecordedStep, read_steps
from sim.twin import run_twin
from traces.recording_writer import RecordingWriter
from traces.schema import TraceRequest

GOAL = 0.05
PARTS = (("p50", 50), ("p90", 90), ("p99", 99))


class Load(Struct, frozen=True):
    """Requests to come."""

    arrivals: np.ndarray
    """[n] seconds."""
    prompts: np.ndarray
    outputs: np.ndarray


class Measured(Struct, frozen=True):
    """What clients saw, a number a request: seconds."""

    first: np.ndarray
    last: np.ndarray


def climbing(seconds: float, seed: int, scale: float) -> Load:
    """Poisson arrivals from 1 to 8 a second, times `scale`; short and long prompts and answers, evenly drawn."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1, 10_000))
    # The rate grows in a straight line, so the expected count is a parabola: its inverse spreads the arrivals.
    lowest, highest = scale * 1.0, scale * 8.0
    slope = (highest - lowest) / seconds
    arrivals = (np.sqrt(lowest**2 + 2 * slope * times) - lowest) / slope
    arrivals = arrivals[arrivals < seconds]
    n = len(arrivals)
    return Load(arrivals, rng.integers(8, 400, n), rng.integers(8, 100, n))


def bursting(seconds: float, seed: int, scale: float) -> Load:
    """Gamma arrivals of CV 2, 4 a second on average, times `scale`; lognormal lengths, as of a chat."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.gamma(0.25, 1 / scale, 10_000))
    arrivals = arrivals[arrivals < seconds]
    n = len(arrivals)
    prompts = np.clip(rng.lognormal(4.6, 0.8, n), 4, 700).astype(int)
    outputs = np.clip(rng.lognormal(3.7, 0.6, n), 4, 200).astype(int)
    return Load(arrivals, prompts, outputs)


class Bench:
    """The real model, and an engine of its own for each run."""

    def __init__(self, threads: int | None) -> None:
        model = load_model(None)
        self.name = model.name
        self.codec = Codec(model.tokenizer)
        self.runner: TorchRunner = build_runner(
            model, num_blocks=2048, max_context=1024, max_batch=64, threads=threads, step_tokens=256
        )
        self.config = CoreConfig(
            memory=MemoryConfig(
                num_blocks=self.runner.num_blocks, block_size=self.runner.block_size
            ),
            scheduler=SchedulerConfig(max_context=1024, token_budget=256, max_batch=64),
        )

    def measure(self, load: Load, record: Path, seed: int) -> Measured:
        """One run, open loop: each request is sent when it is due, whatever became of the others. Every run is recorded, so that all cost the same."""
        return anyio.run(self._drive, load, record, seed)

    async def _drive(self, load: Load, record: Path, seed: int) -> Measured:
        rng = np.random.default_rng(seed)
        n = len(load.arrivals)
        vocabulary = self.codec.vocab_size
        prompts = [rng.integers(3, vocabulary, k).astype(np.int32) for k in load.prompts.tolist()]
        first, last = np.zeros(n), np.zeros(n)
        recorder = RecordingWriter(record, config=self.config, model=self.name)
        engine = Engine(
            self.runner, self.config, self.codec, model_name=self.name, recorder=recorder
        )

        async def ask(index: int) -> None:
            await anyio.sleep(max(0.0, begin + load.arrivals[index] - time.perf_counter()))
            stream = engine.open(
                Generation(
                    prompt=prompts[index],
                    max_tokens=int(load.outputs[index]),
                    sampling=SamplingParams(temperature=0.0),
                    ignore_eos=True,
                )
            )
            async for _ in stream:
                last[index] = time.perf_counter() - begin
                first[index] = first[index] or last[index]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            await anyio.sleep(0.05)
            begin = time.perf_counter()
            async with anyio.create_task_group() as clients:
                for index in range(n):
                    clients.start_soon(ask, index)
            engine.stop()
        recorder.close()
        return Measured(first, last)


class Others:
    """What other processes take of the machine's processors from now on. Linux only; elsewhere nothing is known."""

    def __init__(self) -> None:
        self._begin = self._read()

    def _read(self) -> tuple[float, float] | None:
        stat = Path("/proc/stat")
        if not stat.exists():
            return None
        ticks = [int(x) for x in stat.read_text().split("\n", 1)[0].split()[1:]]
        idle = ticks[3] + ticks[4]
        own = time.process_time() * os.sysconf("SC_CLK_TCK")
        return sum(ticks[:8]) - idle - own, sum(ticks[:8])

    def share(self) -> float | None:
        """Since the beginning."""
        now = self._read()
        if now is None or self._begin is None:
            return None
        return (now[0] - self._begin[0]) / max(1.0, now[1] - self._begin[1])


def learn(
    bench: Bench, folder: Path, options: argparse.Namespace, piece: int
) -> list[RecordedStep]:
    """The steps of one piece of the run that is learnt from."""
    path = folder / f"learn{piece}.jsonl"
    seconds = options.learn_s / (options.repeat + 1)
    load = climbing(seconds, options.seed + 1000 * piece, options.rate)
    bench.measure(load, path, 1000 + piece)
    return read_steps(path)


def predict(load: Load, config: CoreConfig, cost: FittedCost, lag_s: float) -> Measured:
    """What the twin says of the same load; clients hear of a step `lag_s` after its end."""
    rows = [
        TraceRequest(i + 1, round(at * 1e9), int(prompt), int(output))
        for i, (at, prompt, output) in enumerate(
            zip(load.arrivals, load.prompts, load.outputs, strict=True)
        )
    ]
    ledger = run_twin(rows, [Scheduler(config)], cost).ledger
    return Measured(
        np.array(ledger.first_token_ns) / 1e9 + lag_s, np.array(ledger.end_ns) / 1e9 + lag_s
    )


def steps_error(cost: FittedCost, recording: Path) -> float:
    """What the fit says of all steps of a recording together, over what they took, less 1."""
    steps = read_steps(recording)
    return sum(cost.step_ns(step.work) for step in steps) / sum(step.ns for step in steps) - 1


def figures_of(load: Load, seen: Measured) -> dict[str, float]:
    """Percentiles of latencies in ms, of each answer's tokens a second, and tokens a second of the whole run."""
    e2e = seen.last - load.arrivals
    samples = {
        "ttft_ms": 1e3 * (seen.first - load.arrivals),
        "tpot_ms": 1e3 * (seen.last - seen.first) / (load.outputs - 1),
        "e2e_ms": 1e3 * e2e,
        "answer_tok_s": load.outputs / e2e,
    }
    figures = {
        f"{name}_{part}": float(np.percentile(values, q))
        for name, values in samples.items()
        for part, q in PARTS
    }
    figures["run_tok_s"] = float(load.outputs.sum() / (seen.last.max() - load.arrivals[0]))
    return figures


def at_speed(fit: Fit, steps_error: float) -> Fit:
    """The fit of a machine that is faster by as much as this one's steps are too long."""
    scaled = {name: ns / (1 + steps_error) for name, ns in fit.coefficients.items()}
    return replace(fit, coefficients=scaled)


def compare(
    repeats: Sequence[dict[str, float]], predicted: dict[str, float], at_speed: dict[str, float]
) -> dict[str, float]:
    """Prints the table; every number in it, by name."""
    out: dict[str, float] = {}
    hits = 0
    print(f"{'':18}{'measured':>10}{'predicted':>11}{'error':>9}{'spread':>9}{'at speed':>10}")
    for name, value in predicted.items():
        values = np.array([run[name] for run in repeats])
        mean = float(values.mean())
        spread = float(np.abs(values - mean).max() / mean)
        error = value / mean - 1
        rest = at_speed[name] / mean - 1
        hit = abs(error) <= max(GOAL, spread)
        hits += hit
        out |= {f"{name}_measured": mean, f"{name}_predicted": value}
        out |= {f"{name}_error": error, f"{name}_spread": spread, f"{name}_at_speed": rest}
        mark = "" if hit else "  missed"
        print(f"{name:18}{mean:10,.1f}{value:11,.1f}{error:9.1%}{spread:9.1%}{rest:10.1%}{mark}")
    print(f"{hits} of {len(predicted)} figures hit")
    return out | {"hits": hits, "figures": len(predicted)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learn-s", type=float, default=180.0)
    parser.add_argument("--test-s", type=float, default=25.0)
    parser.add_argument("--repeat", type=int, default=4)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rate", type=float, default=0.6, help="so many times the arrivals")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for the recordings")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bench = Bench(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        bench.measure(bursting(3.0, 99, options.rate), folder / "warm.jsonl", 99)
        others = Others()
        load = bursting(options.test_s, options.seed + 1, options.rate)
        tests = [folder / f"test{number}.jsonl" for number in range(options.repeat)]
        runs = []
        steps = learn(bench, folder, options, 0)
        for number, test in enumerate(tests):
            runs.append(figures_of(load, bench.measure(load, test, number)))
            steps += learn(bench, folder, options, number + 1)
        other_cpu = others.share()
        fit = fit_steps(steps, recording="learn", model=bench.name)
        drift = [steps_error(FittedCost(fit), test) for test in tests]
    bench.runner.close()
    print(
        f"{bench.name}: fitted to {fit.num_steps} steps, a step off by {fit.error_share:.1%}, "
        f"all by {fit.total_error_share:+.1%}, results taken in after {fit.lag_us:.0f} us; set aside "
        f"{fit.unusual_steps_share:.1%} of the steps with {fit.unusual_time_share:.1%} of the time"
    )
    if other_cpu is not None:
        print(f"other processes took {other_cpu:.1%} of the machine")
    print(f"{len(load.arrivals)} requests in {options.test_s:g} s, {options.repeat} times")
    print("the same steps, fitted over measured: " + ", ".join(f"{x:+.1%}" for x in drift))
    scaled = at_speed(fit, float(np.mean(drift)))
    predicted, rest = (
        figures_of(load, predict(load, bench.config, FittedCost(f), fit.lag_us / 1e6))
        for f in (fit, scaled)
    )
    figures = compare(runs, predicted, rest)
    figures |= {"fit_error_share": fit.error_share, "fit_steps": fit.num_steps}
    figures |= {f"steps_error_{number}": x for number, x in enumerate(drift)}
    if other_cpu is not None:
        figures["other_cpu_share"] = other_cpu
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
