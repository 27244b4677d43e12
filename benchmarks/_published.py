"""Published measurements of engines' steps, and what the roofline says of each. Knows no fit.

A point is of one of these kinds:

    decode      ms of a step in which `batch` sequences decode, half way through answers of `output` to prompts of `input`
    prefill     ms by which a prompt of `input` is answered later than one of `less`, alone: the client's part falls out
    latency     ms for `batch` requests that come together, from their prompts to their last tokens
    throughput  output tokens a second of `requests`, `batch` at a time: they come together and have equal lengths, so waves follow waves
    layer       us of the four products of one layer for so many tokens, kernels alone
    matmul      TFLOP/s that a product reaches whose shape suits the card best
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct

from sim.cost import StepWork, decode_work
from sim.hardware import Hardware, find_hardware, stored_bytes
from sim.models import ModelShape, find_model
from sim.roofline import USUAL_MHZ, Efficiency, Roofline, flops_per_ns

HERE = Path(__file__).resolve().parent
POINTS = HERE / "published_steps.toml"
CARDS = HERE / "published_cards.toml"
FORBIDDEN = ("RTX 4090", "Llama-3.1-8B")
"""Card and model of the run that the model is tried on: no point may be of both."""
GAP_US = 1.0
"""Between two kernels of a graph: in a kernel's cost to a step, not in the time of the kernel alone."""


class Point(Struct, frozen=True, forbid_unknown_fields=True):
    """One published figure, and the load that it is of."""

    kind: Literal["decode", "prefill", "latency", "throughput", "layer", "matmul"]
    batch: int = 1
    input: int = 0
    less: int = 0
    output: int = 0
    requests: int = 0
    tokens: int = 0
    ms: float | None = None
    us: float | None = None
    tokens_per_s: float | None = None
    tflops: float | None = None

    @property
    def measured(self) -> float:
        """The one figure that is given, in its own unit."""
        given = [f for f in (self.ms, self.us, self.tokens_per_s, self.tflops) if f is not None]
        if len(given) != 1:
            raise ValueError(f"a point needs one figure, this one has {len(given)}: {self}")
        return given[0]

    @property
    def load(self) -> str:
        """In a few words."""
        if self.kind == "layer":
            return f"layer, {self.tokens} tokens"
        if self.kind == "matmul":
            return "matmul, best"
        if self.kind == "prefill":
            return f"prompt of {self.input} less {self.less}"
        return f"{self.kind}, {self.batch} of {self.input}+{self.output}"


class Run(Struct, frozen=True, forbid_unknown_fields=True):
    """Points of one source, card, model and engine."""

    source: str
    engine: str
    card: str
    model: str
    dtype: str
    points: tuple[Point, ...]
    overlap: bool = False
    v0: bool = False
    """The engine before V1, whose host took longer."""
    budget: int = 2048
    tensor_parallel: int = 1


class Case(Struct, frozen=True):
    """A point with what it needs to be priced."""

    run: Run
    point: Point
    hardware: Hardware
    model: ModelShape


def load_cases(path: Path = POINTS) -> list[Case]:
    """Every point of the file.

    Raises:
        ValueError: a point is of the run that the model is tried on.
    """
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    shapes = {
        name: msgspec.convert({**entry, "name": name}, ModelShape)
        for name, entry in data["models"].items()
    }
    cases = []
    for run in msgspec.convert(data["run"], list[Run]):
        if (run.card, run.model) == FORBIDDEN:
            raise ValueError(
                f"{run.source}: {run.model} on {run.card} is what the model is tried on"
            )
        hardware = find_hardware(run.card, CARDS)
        model = shapes[run.model] if run.model in shapes else find_model(run.model)
        cases += [Case(run, point, hardware, model) for point in run.points]
    return cases


class Aside(Struct, frozen=True):
    """What a fit needs beside the twin's constants."""

    best_shape: float = 0.86
    """What a layer's products reach of the rate of the shape that suits a card best."""
    v0_host: float = 1.8
    """The host's part in vLLM's engine before V1, of that in V1."""


def predict(case: Case, rates: Efficiency, aside: Aside) -> float:
    """What the point's figure would be."""
    run, point = case.run, case.point
    if point.kind == "matmul":
        rate = flops_per_ns(case.hardware, run.dtype, rates.linear_compute, rates)
        return 1e-3 * rate / aside.best_shape
    if point.kind == "layer":
        return _layer_us(case, rates)
    if run.v0:
        rates = msgspec.structs.replace(rates, host_step_us=aside.v0_host * rates.host_step_us)
    cost = Roofline(
        case.hardware,
        case.model,
        run.dtype,
        "bf16" if run.dtype in ("fp8", "int8", "int4") else run.dtype,
        rates,
        tensor_parallel=run.tensor_parallel,
        overlap=run.overlap,
    )
    if point.kind == "decode":
        context = point.batch * (point.input + point.output // 2)
        return 1e-6 * cost.step_ns(decode_work(point.batch, context))
    if point.kind == "prefill":
        longer, shorter = (
            sum(map(cost.step_ns, prefills(1, tokens, run.budget)))
            for tokens in (point.input, point.less)
        )
        return 1e-6 * (longer - shorter)
    if point.kind == "latency":
        return 1e-6 * _wave_ns(cost, point, point.batch, run.budget)
    waves, rest = divmod(point.requests, point.batch)
    total = waves * _wave_ns(cost, point, point.batch, run.budget)
    if rest:
        total += _wave_ns(cost, point, rest, run.budget)
    return 1e9 * point.requests * point.output / total


def prefills(batch: int, tokens: int, budget: int) -> Iterator[StepWork]:
    """The steps that compute so many prompts of equal length: as many whole ones as fit in a step, or a prompt in pieces."""
    if tokens > budget:
        for _ in range(batch):
            for start in range(0, tokens, budget):
                yield _chunks(1, start, min(budget, tokens - start), start + budget >= tokens)
        return
    together = budget // tokens
    for done in range(0, batch, together):
        yield _chunks(min(together, batch - done), 0, tokens, True)


def _chunks(prompts: int, start: int, count: int, last: bool) -> StepWork:
    tokens, context = prompts * count, prompts * (start + count)
    pairs = prompts * (count * start + count * (count + 1) // 2)
    samples = prompts if last else 0
    return StepWork(tokens, samples, prompts, context, pairs, prompts, tokens, context, pairs)


def _wave_ns(cost: Roofline, point: Point, batch: int, budget: int) -> float:
    prompts = sum(map(cost.step_ns, prefills(batch, point.input, budget)))
    first = decode_work(batch, batch * (point.input + 1))
    return prompts + float(np.sum(cost.leap_ns(first, point.output - 1)))


def _layer_us(case: Case, rates: Efficiency) -> float:
    dtype, tokens = case.run.dtype, case.point.tokens
    weights = case.model.layer_matmul_params
    flops = flops_per_ns(case.hardware, dtype, rates.linear_compute, rates)
    compute = 2 * weights * (tokens + rates.ramp_tokens) / flops
    memory = weights * stored_bytes(dtype)[0] / (rates.memory * case.hardware.memory_gb_per_s)
    products = max(compute, memory) + rates.unhidden * min(compute, memory)
    kernel_us = rates.kernel_cycles / (case.hardware.clock_mhz or USUAL_MHZ)
    return 1e-3 * products + 4 * (kernel_us - GAP_US)
