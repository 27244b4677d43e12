"""What reaches the core of a row while its result is discarded: it was preempted, or ended, with a step open that names it.

The core listens to some of it, since the states behind a failed sample must be neither found nor swapped. So must the twin.
"""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio
import numpy as np
import pytest

from engine.core.log import Ended, Preempted, Record, SwapEnded, SwapStarted
from engine.core.plan import Finish
from engine.requests import Delta, FinishReason
from sim.lockstep import replay_lockstep
from tests.engine.toy import (
    core_config,
    generation,
    read,
    scripted,
    spelled,
    text_of,
    toy_engine,
)
from tests.reference.scripted import scripted_answer
from tests.sim.desk_drive import (
    ALL_FAIL,
    GONE_FAIL,
    GONE_STOP,
    ROW_FAILS,
    SOUND,
    STEP_FAILS,
    Drive,
)
from traces.recording import RecordingReader
from traces.recording_writer import RecordingWriter

RowFault = Callable[[int, int], str | None]
FATES = [SOUND] * 30 + [GONE_FAIL] * 16 + [GONE_STOP] * 6 + [STEP_FAILS, ROW_FAILS, ALL_FAIL]


def crowd(path: Path, seed: int, max_open_plans: int, preemption: str, policy: str) -> Drive:
    """Some forty requests in a pool that is too small for them, and whatever can go wrong going wrong where it is discarded."""
    rng = random.Random(seed)
    drive = Drive(path, rng.randint(7, 12), max_open_plans, preemption, policy)
    while drive.num_submitted < 40:
        roll = rng.random()
        if roll < 0.12:
            drive.submit(
                rng.randint(1, 14),
                rng.randint(4, 16),
                rng.choice([99, 99, 5]),
                rng.choice([1, 1, 1, 2]),
                rng.randint(1, 3),
                rng.choice([None, None, rng.randint(100, 1500)]),
                tenant=rng.choice(["left", "right"]),
                priority=rng.randrange(2),
            )
        elif roll < 0.20:
            drive.wait(rng.randint(1, 50))
        elif roll < 0.24:
            drive.abort_gone(rng.randrange(9))
        elif roll < 0.27:
            drive.abort_open(rng.randrange(9))
        elif roll < 0.40:
            drive.move(rng.randrange(4), rng.random() < 0.7)
        elif roll < 0.60:
            drive.wake()
        else:
            drive.step(rng.choice(FATES))
    drive.run_out()
    drive.writer.close()
    return drive


@pytest.mark.parametrize("max_open_plans", [1, 2])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_what_befalls_a_row_whose_result_is_discarded_is_repeated(
    tmp_path, preemption, max_open_plans
):
    met: Counter[str] = Counter()
    for seed, policy in enumerate(["fcfs", "priority", "fair"]):
        path = tmp_path / f"{policy}.jsonl"
        drive = crowd(path, seed, max_open_plans, preemption, policy)
        met += drive.met
        said: list[str] = []
        assert replay_lockstep(path, said.append) == 0, said
        memory = drive.scheduler.memory()
        assert (memory.held_blocks, memory.moving_blocks, memory.host_used_blocks) == (0, 0, 0)
        ends = Counter((d.request, d.index) for d in decisions(path) if isinstance(d, Ended))
        assert set(ends.values()) == {1}
        assert len({request for request, _ in ends}) == drive.num_accepted
    print(sorted(met.items()))
    happens = {"aborted, failed", "aborted, stop", "deadline, failed"}
    if max_open_plans == 2:
        # Only where steps overlap can a row give way or end by itself with a step open.
        happens |= {"preempted, failed", "preempted, none", "preempted, stop", "failed, failed"}
    assert met.keys() >= happens, met


def decisions(path: Path) -> list[Record]:
    with RecordingReader(path) as reader:
        return [decision for entry in reader.entries() for decision in entry.decisions]


async def run_two(path: Path, preemption: str, policy: str, row_fault: RowFault | None = None):
    """Two requests that outgrow the pool; what their clients read, and the engine."""
    config = core_config(
        num_blocks=12, host_blocks=12, preemption=preemption, policy=policy, max_open_plans=2
    )
    writer = RecordingWriter(path, config=config, model="toy")
    engine = toy_engine(config, scripted(config, row_fault=row_fault), writer)
    streams = [engine.open(generation([1 + i] * 8, 30, ignore_eos=True)) for i in range(2)]
    said: list[list[Delta]] = [[], []]

    async def listen(i: int) -> None:
        said[i] = await read(streams[i])
        if streams[1 - i].ended:
            engine.stop()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        for i in range(2):
            tasks.start_soon(listen, i)
    writer.close()
    return said, engine


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "again"])
@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
async def test_a_victim_whose_open_sample_fails_is_computed_again_and_told_its_end_once(
    tmp_path, preemption, policy, lasting
):
    """What the step computed is not to be trusted, so nothing of it goes to the host; a fault that lasts is met, and told, again."""
    path = tmp_path / "run.jsonl"
    await run_two(path, preemption, policy)
    given_way = next(d for d in decisions(path) if isinstance(d, Preempted))
    victim, last_known = given_way.request, given_way.num_tokens
    if preemption == "swap":
        assert any(isinstance(d, SwapStarted) and d.direction == "out" for d in decisions(path))
    faults: list[int] = []

    def row_fault(request: int, position: int) -> str | None:
        if (request, position) != (victim, last_known) or (faults and not lasting):
            return None
        faults.append(position)
        return "not a number"

    said, engine = await run_two(path, preemption, policy, row_fault)
    made = decisions(path)
    assert len(faults) == 1 + lasting
    refused = [d for d in made if isinstance(d, SwapEnded) and d.transfer == -1]
    assert [d.request for d in refused] == ([victim] if preemption == "swap" else [])
    ends = {d.request: Finish(d.reason) for d in made if isinstance(d, Ended)}
    assert ends == {1 - victim: Finish.LENGTH, victim: Finish.FAILED if lasting else Finish.LENGTH}
    for i, deltas in enumerate(said):
        finish = FinishReason.ERROR if lasting and i == victim else FinishReason.LENGTH
        assert [d.finish for d in deltas if d.finish is not None] == [finish]
        answer = scripted_answer(np.array([1 + i] * 8, np.int32), 30)
        text = spelled(answer[: last_known - 8] if finish is FinishReason.ERROR else answer)
        assert text_of(deltas) == text
    memory = engine.memory()
    assert (memory.held_blocks, memory.moving_blocks, memory.host_used_blocks) == (0, 0, 0)
    lines: list[str] = []
    assert replay_lockstep(path, lines.append) == 0, lines
