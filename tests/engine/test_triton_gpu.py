"""What only a CUDA device has: captured graphs, a profiled pool, transfers beside the model's work. `make gpu` runs these."""

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.runner import build_runner
from engine.weights.load import load_model
from kernels.cache.swap import HostPool
from tests.engine.drive import drive
from tests.engine.test_triton_engine import prompts_of
from tests.engine.tiny import Tiny, own_model_cache, write_tiny

pytestmark = pytest.mark.gpu


def test_graphs_captured_once_serve_lengths_that_came_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_model_cache(monkeypatch, tmp_path)
    model = load_model(write_tiny(tmp_path / "t.gguf", Tiny(scale=0.15, context=1024)), "float32")
    cpu = build_runner(model, num_blocks=512, block_size=16)
    gpu = build_runner(model, num_blocks=512, block_size=16, device="cuda")
    for lengths in ((5, 9, 30), (300, 2, 41, 7), (600, 600)):
        want, _ = drive(cpu, prompts_of(*lengths), 20)
        got, _ = drive(gpu, prompts_of(*lengths), 20)
        assert got == want


def test_the_pool_takes_most_of_what_is_free_and_steps_still_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_model_cache(monkeypatch, tmp_path)
    model = load_model(write_tiny(tmp_path / "t.gguf", Tiny(context=100_000)), "bfloat16")
    free, _ = torch.cuda.mem_get_info()
    runner = build_runner(model, device="cuda", max_context=100_000, max_batch=10_000)
    taken = runner.num_blocks * 16 * model.shape.kv_bytes_per_token(2)
    assert 0.5 * free < taken < 0.95 * free
    outputs, _ = drive(runner, prompts_of(*[300] * 64), 8)
    assert all(len(tokens) == 8 for tokens in outputs)


def test_transfers_run_beside_the_models_stream() -> None:
    pool = torch.randn(16, 256, 8, 16, 128, device="cuda", dtype=torch.bfloat16)
    frames = np.arange(0, 200, dtype=np.int32)
    host = HostPool(pool, 200)
    want = pool[:, :200].transpose(0, 1).cpu()
    busy = torch.randn(8192, 8192, device="cuda")
    pending = host.swap_out(frames, frames)
    for _ in range(20):
        busy = busy @ busy * 1e-4
    pending.wait()
    assert torch.equal(host.blocks, want)
    torch.cuda.synchronize()
