"""Any order of inputs and step ends: the stern model finds nothing, each request ends once, and both replays are equal."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from engine.core.log import Ended
from sim.lockstep import replay_lockstep
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

SUBMIT = st.tuples(
    st.just("submit"),
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(1, 12)),
    st.integers(1, 9),
    st.sampled_from([1, 1, 2, 3]),
    st.integers(1, 3),
    st.sampled_from([None, None, 200, 1000]),
)
ABORT = st.tuples(st.just("abort"), st.integers(0, 30))
WAKE = st.tuples(st.just("wake"))
ABORT_GONE = st.tuples(st.just("abort_gone"), st.integers(0, 3))
FATES = st.sampled_from(
    [SOUND] * 8 + [GONE_FAIL] * 4 + [GONE_STOP, STEP_FAILS, ROW_FAILS, ALL_FAIL]
)
STEP = st.tuples(st.just("step"), FATES)
MOVE = st.tuples(st.just("move"), st.integers(0, 3), st.sampled_from([True, True, True, False]))
WAIT = st.tuples(st.just("wait"), st.integers(1, 500))
EVENTS = st.lists(
    st.one_of(SUBMIT, STEP, STEP, STEP, STEP, MOVE, WAKE, WAIT, ABORT, ABORT_GONE),
    min_size=1,
    max_size=80,
)


@given(
    events=EVENTS,
    num_blocks=st.integers(1, 8),
    max_open_plans=st.integers(1, 2),
    preemption=st.sampled_from(["recompute", "swap"]),
    policy=st.sampled_from(["fcfs", "priority", "fair"]),
)
def test_any_drive_ends_every_request_once_and_is_repeated(
    events, num_blocks, max_open_plans, preemption, policy
):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        drive = Drive(path, num_blocks, max_open_plans, preemption, policy)
        for name, *arguments in events:
            getattr(drive, name)(*arguments)
            drive.scheduler.check_invariants()
        drive.run_out()
        drive.writer.close()
        memory = drive.scheduler.memory()
        assert (memory.held_blocks, memory.moving_blocks, memory.host_used_blocks) == (0, 0, 0)
        assert (memory.num_running, memory.num_waiting) == (0, 0)
        with RecordingReader(path) as reader:
            made = [decision for entry in reader.entries() for decision in entry.decisions]
        ended = [
            (decision.request, decision.index) for decision in made if isinstance(decision, Ended)
        ]
        assert len(ended) == len(set(ended))
        assert len({request for request, _ in ended}) == drive.num_accepted
        said: list[str] = []
        assert replay_lockstep(path, said.append) == 0, said
