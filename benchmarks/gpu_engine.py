"""Tokens per second of a model of Llama-3-8B's shape with random weights on this GPU, through runner, kernels and graphs.

Drives the runner by the real scheduler, with neither loop nor gateway. Decode: greedy, contexts from 1,024 to 1,088 tokens; the time
of a step is the median over the steps in which every stream decodes. Prefill: one prompt of 4,096 tokens. Without a CUDA device it says
so and measures nothing; `--json FILE` then holds an empty object.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from msgspec import Struct

from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig
from engine.core.ids import RequestId, TimeNs
from engine.core.plan import Idle, Plan, Request, Results
from engine.core.scheduler import Scheduler
from engine.executor import NewSequence, SamplingParams
from engine.models.shape import ModelShape
from engine.runner import TorchRunner, build_runner
from engine.weights.load import LoadedModel
from engine.weights.tokenizer_data import TokenizerData

NOW = TimeNs(0)
GREEDY = SamplingParams(temperature=0.0)


class Load(Struct, frozen=True, kw_only=True):
    """What is timed."""

    streams: tuple[int, ...] = (1, 8, 32, 128)
    prompt: int = 1024
    new: int = 64
    prefill: int = 4096
    rounds: int = 5


LLAMA_3_8B = ModelShape(
    architecture="llama",
    vocab_size=128256,
    num_layers=32,
    hidden_size=4096,
    ffn_size=14336,
    num_heads=32,
    num_kv_heads=8,
    head_size=128,
    max_context=8192,
    rope_theta=500000.0,
    norm_eps=1e-5,
    tied=False,
)
NO_TOKENIZER = TokenizerData(
    model="gpt2",
    pre_tokenizer="default",
    tokens=[],
    types=[],
    merges=[],
    scores=[],
    bos_id=None,
    eos_id=None,
    eot_id=None,
    unknown_id=None,
    add_bos=False,
    add_space_prefix=False,
    chat_template=None,
)


def random_model(shape: ModelShape, device: str) -> LoadedModel:
    """Weights of the usual size, so that activations stay finite through all layers."""

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, dtype=torch.bfloat16, device=device) * columns**-0.5

    hidden, heads = shape.hidden_size, shape.num_heads * shape.head_size
    tensors = {
        "embed": matrix(shape.vocab_size, hidden),
        "head": matrix(shape.vocab_size, hidden),
        "norm": torch.ones(hidden, device=device),
    }
    for i in range(shape.num_layers):
        own = f"layers.{i}."
        tensors |= {
            own + "attn_norm": torch.ones(hidden, device=device),
            own + "ffn_norm": torch.ones(hidden, device=device),
            own + "qkv": matrix(shape.qkv_size, hidden),
            own + "o": matrix(hidden, heads),
            own + "gate_up": matrix(2 * shape.ffn_size, hidden),
            own + "down": matrix(hidden, shape.ffn_size),
        }
    return LoadedModel(
        name="random",
        title="random",
        shape=shape,
        dtype="bfloat16",
        tensors=tensors,
        blocks={},
        tokenizer=NO_TOKENIZER,
        ignored=(),
    )


def run(
    runner: TorchRunner, prompts: list[np.ndarray], new_tokens: int, budget: int
) -> list[tuple[Plan, float]]:
    """Every plan of these requests, and the seconds from asking for it to its commit."""
    scheduler = Scheduler(
        CoreConfig(
            memory=MemoryConfig(num_blocks=runner.num_blocks, block_size=runner.block_size),
            scheduler=SchedulerConfig(
                max_context=runner.max_context, token_budget=budget, max_batch=256, log=False
            ),
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
        new = [NewSequence(row, r, prompts[r], GREEDY) for r, _, row in plan.admitted]
        tokens = runner.execute(plan, new).tokens
        stops = np.zeros(len(tokens), np.int8)
        scheduler.commit(plan, Results(plan.sampling, tokens, stops), NOW)
        steps.append((plan, time.perf_counter() - begin))


def measure(runner: TorchRunner, load: Load) -> dict[str, float]:
    """Figure name to tokens per second. Each kind of step runs before it is timed: kernels compile, graphs are captured."""
    rng = np.random.default_rng(0)
    budget = max(load.prefill, 256)

    def prompts(count: int, length: int) -> list[np.ndarray]:
        return list(rng.integers(0, runner.vocab_size, (count, length)).astype(np.int32))

    run(runner, prompts(1, load.prefill), 1, budget)
    prefill = [run(runner, prompts(1, load.prefill), 1, budget)[0][1] for _ in range(load.rounds)]
    figures = {"prefill_tok_s": load.prefill / statistics.median(prefill)}
    for streams in load.streams:
        run(runner, prompts(streams, 4), 3, budget)
        steps = run(runner, prompts(streams, load.prompt), load.new, budget)
        full = [seconds for plan, seconds in steps if plan.num_decodes == streams]
        figures[f"decode_tok_s_{streams}"] = streams / statistics.median(full)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    if torch.cuda.is_available():
        load = Load()
        model = random_model(LLAMA_3_8B, "cuda")
        runner = build_runner(
            model, device="cuda", max_batch=max(load.streams), step_tokens=load.prefill
        )
        figures = measure(runner, load)
        runner.close()
        print(f"{torch.cuda.get_device_name()}: Llama-3-8B's shape, random bfloat16 weights")
        for name, value in figures.items():
            print(f"{name:20} {value:12.1f}")
    else:
        print("no CUDA device: nothing was measured")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
