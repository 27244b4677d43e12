"""Small random models under the live loop: choices draw numbers of their own, and the real pool moves beside real steps."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import anyio
import numpy as np
import pytest

from engine.core.journal import Commit, Transferred
from engine.executor import SamplingParams
from engine.loop import Engine
from engine.requests import Generation
from engine.runner import TorchRunner, build_runner
from engine.transfers import HostPool
from engine.weights.load import LoadedModel, load_model
from tests.engine.gate import Gate, MoveGate
from tests.engine.running import running, said, until
from tests.engine.tiny import VOCABULARY, Tiny, own_model_cache, write_tiny
from tests.engine.toy import SpellingCodec, core_config, read
from traces.recording import RecordingReader
from traces.recording_writer import RecordingWriter

BLOCK = 8


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    own_model_cache(monkeypatch, tmp_path)
    return load_model(write_tiny(tmp_path / "t.gguf", Tiny(scale=0.15)), "float32")


def built(model: LoadedModel, num_blocks: int, **limits: object) -> tuple[TorchRunner, object]:
    config = core_config(num_blocks=num_blocks, block_size=BLOCK, max_context=128, **limits)
    runner = build_runner(
        model,
        num_blocks=num_blocks,
        block_size=BLOCK,
        max_context=128,
        host_blocks=config.memory.host_blocks,
        threads=1,
    )
    return runner, config


def asking(seed: int, length: int, n: int, sampling: SamplingParams) -> Generation:
    prompt = np.random.default_rng(seed).integers(3, VOCABULARY, length).astype(np.int32)
    return Generation(
        prompt=prompt, max_tokens=24, sampling=sampling, ignore_eos=True, num_sequences=n
    )


SEEDED = SamplingParams(temperature=0.9, seed=1234)


async def answers(
    model: LoadedModel, asked: list[Generation], num_blocks: int = 200, **limits: object
) -> tuple[list[dict[int, list[int]]], Engine]:
    runner, config = built(model, num_blocks, **limits)
    engine = Engine(runner, config, SpellingCodec(), model_name="tiny", check_every_step=True)
    async with running(engine):
        streams = [engine.open(generation) for generation in asked]
        told = [said(await read(stream)) for stream in streams]
    runner.close()
    return told, engine


@pytest.mark.parametrize(
    ("num_blocks", "limits"),
    [
        (200, {}),
        (200, {"token_budget": 5, "max_batch": 5}),
        (20, {"token_budget": 9, "max_batch": 9}),
        (20, {"preemption": "swap", "host_blocks": 40}),
        (20, {"preemption": "swap", "host_blocks": 40, "max_open_plans": 1}),
    ],
)
async def test_fr_12_seeded_choices_are_the_same_whatever_runs_beside_them(
    model, num_blocks, limits
):
    """Alone, and with neighbours that have seeds or none, chunked, preempted and swapped."""
    (alone,), _ = await answers(model, [asking(5, 20, 3, SEEDED)])
    neighbours = [asking(s, 20 + s, 2, SamplingParams(temperature=1.3, seed=s)) for s in (1, 2, 3)]

    told, engine = await answers(
        model, [neighbours[0], asking(5, 20, 3, SEEDED), *neighbours[1:]], num_blocks, **limits
    )

    assert told[1] == alone
    assert (engine.counters.preemptions > 0) == (num_blocks == 20)
    assert (engine.counters.swaps > 0) == ("preemption" in limits)


async def test_choices_of_one_seed_differ_and_the_first_is_what_one_choice_says(model):
    told, _ = await answers(model, [asking(5, 20, 4, SEEDED), asking(5, 20, 1, SEEDED)])

    assert told[0][0] == told[1][0]
    assert len({tuple(tokens) for tokens in told[0].values()}) == 4


async def test_greedy_choices_are_all_the_same(model):
    greedy = SamplingParams(temperature=0.0)
    told, _ = await answers(model, [asking(5, 20, 3, greedy), asking(5, 20, 1, greedy)])

    assert told[0] == dict.fromkeys(range(3), told[1][0])


async def test_blocks_of_the_real_pool_move_during_a_step(model, tmp_path):
    """The first transfer begins, ends and is recorded while one call of the model runs."""
    runner, config = built(model, 14, preemption="swap", host_blocks=20)
    gate, held = Gate(), MoveGate(out=True)
    forward, copy_out, calls = runner._model.forward, runner.copy_out, itertools.count()

    def gated(step):
        gate(SimpleNamespace(step=next(calls)))
        return forward(step)

    def late(frames, hosts):
        held(True)
        copy_out(frames, hosts)

    runner._model.forward, runner.copy_out = gated, late
    asked = [asking(s, 20 + s, 1, SamplingParams(temperature=0.0)) for s in range(4)]
    writer = RecordingWriter(tmp_path / "run.jsonl", config=config, model="tiny")
    engine = Engine(runner, config, SpellingCodec(), model_name="tiny", recorder=writer)
    async with running(engine):
        streams = [engine.open(generation) for generation in asked]
        while not engine.memory().moving_blocks:
            gate.let_go()
            await until(lambda: gate.waiting or engine.memory().moving_blocks)
        await until(lambda: gate.waiting and held.entered.is_set())
        held.open()
        await until(lambda: engine.memory().moving_blocks == 0)
        gate.open()
        told = [said(await read(stream)) for stream in streams]
    writer.close()
    runner.close()
    expected, _ = await answers(model, asked)
    assert told == expected
    with RecordingReader(writer.path) as reader:
        recorded = [entry.call for entry in reader.entries()]
    move = next(call for call in recorded if isinstance(call, Transferred))
    steps = [call for call in recorded if isinstance(call, Commit)]
    assert len([s for s in steps if s.started < move.ended < s.ended]) == 1


class RefusingBlocks:
    """Copies as the pool does, but for the calls whose numbers, by kind, are named: those fail as torch does."""

    def __init__(self, pool: HostPool, **refused: int) -> None:
        self._pool = pool
        self._refused = refused
        self.calls = dict.fromkeys(("copy", "copy_out", "copy_in"), 0)

    def __getattr__(self, name: str):
        def call(first, second) -> None:
            if len(first):
                self.calls[name] += 1
                if self.calls[name] == self._refused.get(name):
                    raise RuntimeError("the device is out of memory")
            getattr(self._pool, name)(first, second)

        return call


@pytest.mark.parametrize("name", ["copy_out", "copy_in"])
async def test_a_transfer_that_torch_refuses_fails_alone(model, name):
    runner, config = built(model, 14, preemption="swap", host_blocks=20)
    blocks = runner._blocks = RefusingBlocks(runner._blocks, **{name: 1})
    asked = [asking(s, 20 + s, 1, SamplingParams(temperature=0.0)) for s in range(4)]
    engine = Engine(runner, config, SpellingCodec(), model_name="tiny")
    async with running(engine):
        streams = [engine.open(generation) for generation in asked]
        with anyio.fail_after(60):
            told = [said(await read(stream)) for stream in streams]
    runner.close()
    assert blocks.calls[name] >= 1
    expected, _ = await answers(model, asked)
    assert told == expected


async def test_copies_that_torch_refuses_fail_their_step(model):
    runner, config = built(model, 40)
    blocks = runner._blocks = RefusingBlocks(runner._blocks, copy=1)
    engine = Engine(runner, config, SpellingCodec(), model_name="tiny")
    async with running(engine):
        with anyio.fail_after(60):
            failed = await read(engine.open(asking(5, 21, 3, SamplingParams(seed=1))))
            later = await read(engine.open(asking(5, 21, 3, SamplingParams(seed=1))))
    runner.close()
    assert blocks.calls["copy"] > 1
    assert "out of memory" in next(delta.error for delta in failed if delta.error is not None)
    assert all(delta.error is None for delta in later)


def test_host_pool_copies_whole_frames_both_ways():
    frames = np.arange(3 * 5 * 4, dtype=np.uint8).reshape(3, 5, 4)
    before = frames.copy()
    pool = HostPool(frames, 4)
    pool.copy_out(np.array([4, 0], np.int32), np.array([1, 3], np.int32))
    frames[:, [0, 4]] = 0
    pool.copy(np.array([1, 1], np.int32), np.array([3, 4], np.int32))
    pool.copy_in(np.array([2, 0], np.int32), np.array([1, 3], np.int32))
    for frame, was in enumerate((0, 1, 4, 1, 1)):
        assert (frames[:, frame] == before[:, was]).all()
