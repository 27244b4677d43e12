"""A core that breaks its invariants is stopped before anything it decided is done or delivered, and leaves evidence."""

import msgspec
import pytest

from engine.core.errors import InvariantError
from engine.core.journal import Call, Commit
from engine.core.log import Admitted, Record
from engine.requests import FinishReason
from tests.engine.running import running
from tests.engine.toy import core_config, generation, read, scripted, tokens_of, toy_engine
from traces.recording_writer import RecordingWriter


def lose_a_frame(engine) -> None:
    """What a defect in the core could do, and what nobody would notice for long."""
    engine._desk._scheduler.allocator.pool.refs[0] += 1


@pytest.mark.parametrize("recorded", [False, True])
async def test_broken_invariant_fails_open_requests_dumps_the_log_and_ends_the_run(
    tmp_path, caplog, recorded
):
    config = core_config(num_blocks=16)
    dump = tmp_path / "decisions.jsonl"
    writer = RecordingWriter(tmp_path / "r.jsonl", config=config, model="toy") if recorded else None
    executor = scripted(config, pace=lambda plan: lose_a_frame(engine) if plan.step == 5 else None)
    engine = toy_engine(config, executor, writer, check_every_step=True, dump=dump)
    streams = [engine.open(generation([n] * 6, 20)) for n in range(1, 4)]
    with pytest.raises(InvariantError, match="reference counts differ"):
        await engine.run()
    for stream in streams:
        deltas = await read(stream)
        assert (deltas[-1].finish, deltas[-1].error) == (
            FinishReason.ERROR,
            "the server has failed",
        )
        assert tokens_of(deltas) <= 5
    lines = [
        msgspec.json.decode(line, type=Call | Record) for line in dump.read_bytes().splitlines()
    ]
    assert any(isinstance(line, Admitted) for line in lines)
    assert isinstance([line for line in lines if isinstance(line, Call)][-2], Commit)
    assert str(dump) in caplog.text
    if writer is not None:
        writer.close()


async def test_sound_core_passes_every_check():
    config = core_config(num_blocks=14, preemption="swap", host_blocks=8)
    engine = toy_engine(config, scripted(config), check_every_step=True)
    streams = [engine.open(generation([n] * 6, 20, num_sequences=1 + n % 2)) for n in range(4)]
    async with running(engine):
        for stream in streams:
            await read(stream)
    assert engine.counters.preemptions > 0


async def test_dump_that_cannot_be_written_is_said_and_hides_nothing(tmp_path, caplog):
    config = core_config(num_blocks=16)
    executor = scripted(config, pace=lambda plan: lose_a_frame(engine) if plan.step == 1 else None)
    nowhere = tmp_path / "missing" / "decisions.jsonl"
    engine = toy_engine(config, executor, check_every_step=True, dump=nowhere)
    engine.open(generation([1] * 6, 20))
    with pytest.raises(InvariantError):
        await engine.run()
    assert "cannot be written to" in caplog.text
