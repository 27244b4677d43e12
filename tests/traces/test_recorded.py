"""A recording is a workload: what clients asked and got comes out as requests, with the prefixes that they shared, and can be replayed."""

import random
from pathlib import Path

import anyio
import msgspec
import pytest

from engine.core.errors import TraceError
from engine.core.journal import Submit
from sim.config import build_config
from sim.replay import replay, resolve
from tests.engine.crowd import VOCABULARY, let_in
from tests.engine.toy import core_config, generation, read, scripted, tokens_of, toy_engine
from traces.formats import open_trace
from traces.recording import RecordingReader
from traces.recording_writer import RecordingWriter

BLOCK = 4


async def record(path: Path, asks, **limits) -> list[int]:
    """Lets clients ask `(prompt, max_tokens, salt)` in turn, a few at once; how many tokens each was given."""
    config = core_config(num_blocks=24, block_size=BLOCK, **limits)
    writer = RecordingWriter(path, config=config, model="toy")
    engine = toy_engine(config, scripted(config, vocab_size=VOCABULARY), writer)
    given = [0] * len(asks)

    async def ask(number: int) -> None:
        prompt, max_tokens, salt = asks[number]
        given[number] = tokens_of(
            await read(engine.open(generation(prompt, max_tokens, salt=salt)))
        )

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        for start in range(0, len(asks), 7):
            async with anyio.create_task_group() as clients:
                for number in range(start, min(start + 7, len(asks))):
                    clients.start_soon(ask, number)
        engine.stop()
    writer.close()
    return given


def some_asks(seed: int, count: int = 40):
    rng = random.Random(seed)
    asks = []
    for _ in range(count):
        shared = [3] * rng.choice([0, 4, 8, 10])
        prompt = shared + [rng.randrange(1, 30) for _ in range(rng.randint(1, 9))]
        asks.append((prompt, rng.randint(1, 20), rng.choice(["", "", "pepper"])))
    return asks


def prefixes(prompt, salt):
    return [(salt, tuple(prompt[:end])) for end in range(BLOCK, len(prompt) + 1, BLOCK)]


@pytest.mark.parametrize("seed", range(3))
async def test_lengths_and_shared_prefixes_come_back(tmp_path, seed):
    path = tmp_path / "run.jsonl.gz"
    asks = some_asks(seed)
    given = await record(path, asks, preemption="recompute")
    trace = open_trace(path, strict=True)
    rows = list(trace.requests())
    assert trace.format == "recording"
    assert trace.hash_block_tokens == BLOCK
    with RecordingReader(path) as reader:
        submits = [e.call for e in reader.entries() if isinstance(e.call, Submit)]
    assert [r.arrival_ns for r in rows] == [s.now - submits[0].now for s in submits]
    assert sorted((len(p), n) for (p, _, _), n in zip(asks, given, strict=True)) == sorted(
        (r.num_prompt, r.num_output) for r in rows
    )
    # Within a burst clients may be let in in any order, so prompts are matched by what they share.
    wanted = sorted(len(prefixes(p, s)) for p, _, s in asks)
    assert sorted(len(r.hash_ids) for r in rows) == wanted
    assert len({i for r in rows for i in r.hash_ids}) == len(
        {prefix for p, _, s in asks for prefix in prefixes(p, s)}
    )


async def test_recording_is_replayed_and_counts_add_up(tmp_path):
    path = tmp_path / "run.jsonl.gz"
    given = await record(path, some_asks(7))
    resolved = resolve(build_config(num_blocks=24, block_size=BLOCK))
    report = replay(open_trace(path), resolved)
    assert report.requests.submitted == report.requests.done == len(given)
    assert report.throughput.output_tokens == sum(given)
    assert report.memory.prefix_hits_tokens > 0
    assert any("recorded server" in bias for bias in report.biases)


async def test_crowd_that_leaves_swaps_and_asks_for_several_answers_is_counted_whole(tmp_path):
    path = tmp_path / "run.jsonl"
    config = core_config(
        num_blocks=20, token_budget=24, max_batch=10, host_blocks=20, preemption="swap"
    )
    writer = RecordingWriter(path, config=config, model="toy")
    engine = toy_engine(config, scripted(config, vocab_size=VOCABULARY), writer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        await let_in(engine, 80, seed=1)
        engine.stop()
    writer.close()
    trace = open_trace(path)
    rows = list(trace.requests())
    with RecordingReader(path) as reader:
        submits = [e.call for e in reader.entries() if isinstance(e.call, Submit)]
    assert trace.bad_counts == {}
    assert [r.num_prompt for r in rows] == [s.num_prompt for s in submits]
    assert all(1 <= r.num_output <= s.max_tokens for r, s in zip(rows, submits, strict=True))


async def test_recording_that_was_cut_short_says_so_and_keeps_its_requests(tmp_path):
    path = tmp_path / "run.jsonl"
    await record(path, some_asks(2))
    lines = path.read_bytes().splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(b"".join(lines[: len(lines) // 2]))
    trace = open_trace(cut)
    rows = list(trace.requests())
    submitted = sum(b'"type":"submit"' in line for line in lines[: len(lines) // 2])
    assert len(rows) == submitted
    assert trace.bad_counts == {"damaged_file": 1}
    assert "cut short" in trace.bad_rows[0].message
    with pytest.raises(TraceError, match="cut short"):
        list(open_trace(cut, strict=True).requests())


async def test_recording_that_decides_otherwise_is_told_from_a_sound_one(tmp_path):
    path = tmp_path / "run.jsonl"
    await record(path, some_asks(4))
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"answer":"plan"' in line and i > 40)
    plan = msgspec.json.decode(lines[at])
    plan["digest"] += 1
    lines[at] = msgspec.json.encode(plan) + b"\n"
    path.write_bytes(b"".join(lines))
    trace = open_trace(path)
    rows = list(trace.requests())
    assert trace.bad_rows[0].line == at + 1
    assert "decides otherwise" in trace.bad_rows[0].message
    assert len(rows) == sum(b'"type":"submit"' in line for line in lines[:at])


async def test_missing_call_is_named(tmp_path):
    path = tmp_path / "run.jsonl"
    await record(path, some_asks(5))
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"type":"commit"' in line)
    path.write_bytes(b"".join(lines[:at] + lines[at + 1 :]))
    trace = open_trace(path)
    list(trace.requests())
    assert "stands where call" in trace.bad_rows[0].message
