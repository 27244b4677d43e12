"""The identity: what the live loop recorded, a fresh core and the twin do again, call by call and decision by decision."""

import threading
from pathlib import Path

import anyio
import msgspec
import pytest
import typer
from typer.testing import CliRunner

from engine.core.errors import ExecutorError, TraceError
from engine.core.journal import Commit, Schedule, Submit
from engine.core.log import Admitted, Preempted
from engine.core.plan import Finish
from sim.cli import replay
from sim.lockstep import check_twin, replay_lockstep
from sim.rerun import check_journal
from tests.conftest import DATA
from tests.engine.crowd import VOCABULARY, Habits, Told, let_in
from tests.engine.toy import core_config, scripted, toy_engine
from traces.recording import RecordingReader
from traces.recording_writer import RecordingWriter


class VirtualClock:
    """Transferred on by the model's steps, read by the event loop: two threads, one integer."""

    def __init__(self) -> None:
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            return self._now

    def advance(self, plan) -> None:
        with self._lock:
            self._now += 100_000 + 1000 * plan.num_tokens


async def record_crowd(
    path: Path, *, clients: int, seed: int = 0, faults: bool, virtual: bool, **limits
) -> Told:
    swap = {"host_blocks": 20, "preemption": "swap"}
    small = {"num_blocks": 20, "token_budget": 24, "max_batch": 10, "aging_ns": 3_000_000}
    config = core_config(**{**small, **swap, **limits})
    clock = VirtualClock()
    executor = scripted(
        config,
        vocab_size=VOCABULARY,
        pace=clock.advance if virtual else None,
        step_fault=lambda plan: (
            ExecutorError("hiccup") if faults and plan.step % 61 == 60 else None
        ),
        row_fault=lambda request, at: (
            "not a number" if faults and (request * 31 + at) % 397 == 0 else None
        ),
        move_fault=lambda number: (
            ExecutorError("a lost page") if faults and number % 5 == 4 else None
        ),
    )
    writer = RecordingWriter(path, config=config, model="toy")
    options = {"clock": clock} if virtual else {}
    engine = toy_engine(config, executor, writer, **options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        told = await let_in(engine, clients, seed, Habits(deadlines=True))
        engine.stop()
    writer.close()
    counters = engine.counters
    assert min(counters.preemptions, counters.prefix_hits_tokens) > 0
    assert (counters.swaps > 0) == (config.scheduler.preemption == "swap")
    return told


def edited(path: Path, change) -> Path:
    """A copy of the recording after `change` has worked on its lines, decoded."""
    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    before = msgspec.json.encode(lines)
    change(lines)
    assert msgspec.json.encode(lines) != before
    copy = path.with_name("edited.jsonl")
    copy.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return copy


def first(lines, type_, **fields):
    return next(
        line
        for line in lines
        if line["type"] == type_ and all(line[name] == value for name, value in fields.items())
    )


@pytest.mark.parametrize(
    ("policy", "preemption"), [("fcfs", "recompute"), ("priority", "swap"), ("fair", "swap")]
)
@pytest.mark.parametrize("max_open_plans", [1, 2])
@pytest.mark.parametrize("virtual", [True, False], ids=["virtual-clock", "real-clock"])
@pytest.mark.parametrize("faults", [False, True], ids=["sound", "faults"])
async def test_live_run_with_preemptions_and_aborts_is_repeated_by_journal_and_twin(
    tmp_path, policy, preemption, max_open_plans, virtual, faults
):
    path = tmp_path / "run.jsonl.gz"
    told = await record_crowd(
        path,
        clients=160,
        faults=faults,
        virtual=virtual,
        max_open_plans=max_open_plans,
        policy=policy,
        preemption=preemption,
    )
    assert told.wrong == []
    said: list[str] = []
    assert replay_lockstep(path, said.append) == 0, said
    assert [line.split(",")[0] for line in said] == ["journal: equal", "twin: equal"]
    with RecordingReader(path) as reader:
        calls = [entry.call for entry in reader.entries()]
    assert sum(isinstance(call, Submit) and call.rejected is None for call in calls) >= 100


async def test_run_that_was_stopped_in_the_middle_is_repeated(tmp_path):
    path, config = tmp_path / "run.jsonl", core_config(num_blocks=16)
    writer = RecordingWriter(path, config=config, model="toy")
    engine = toy_engine(config, scripted(config), writer)

    async def stop_soon():
        while engine.counters.preemptions < 3:
            await anyio.lowlevel.checkpoint()
        engine.stop()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        tasks.start_soon(stop_soon)
        await let_in(engine, 60, seed=3)
    writer.close()
    assert replay_lockstep(path, lambda line: None) == 0


@pytest.fixture
async def recording(tmp_path) -> Path:
    path = tmp_path / "run.jsonl"
    await record_crowd(path, clients=120, faults=True, virtual=True)
    return path


def change_decision(lines):
    first(lines, "preempt")["num_tokens"] += 1


def lose_decision(lines):
    lines.remove(first(lines, "admit"))


def change_plan(lines):
    first(lines, "schedule", answer="plan", step=20)["digest"] ^= 1


def change_length(lines):
    request = first(lines, "end", reason=Finish.LENGTH)["request"]
    first(lines, "submit", request=request)["max_tokens"] += 1


def forget_stop(lines):
    request = first(lines, "end", reason=Finish.STOP)
    commit = next(line for line in lines[lines.index(request) :: -1] if line["type"] == "commit")
    commit["stops"] = []


def commit_what_is_not_open(lines):
    first(lines, "commit", step=9)["step"] = 10


def change_prompt(lines):
    """A request that was admitted with cached blocks is said to begin in another way."""
    admitted = {}
    for line in lines:
        if line["type"] == "admit":
            admitted.setdefault(line["request"], line)
    lucky = next(request for request, line in admitted.items() if line["shared"])
    content = first(lines, "submit", request=lucky)["content"]
    content[:] = [9999, *content[1:]]


def change_what_was_said(lines):
    for line in lines:
        if line["type"] == "commit":
            line["blocks"] = [[index, 0] for index, _ in line["blocks"]]


def change_salt(lines):
    for line in lines:
        if line["type"] == "submit":
            line["salt"] = 0


def change_number_of_choices(lines):
    first(lines, "submit", num_sequences=2, rejected=None)["num_sequences"] = 3


def change_deadline(lines):
    expired = next(line for line in lines if line["type"] == "expire" and line["expired"])
    first(lines, "submit", request=expired["expired"][0])["deadline"] += 10**9


def lose_expiry(lines):
    expired = next(line for line in lines if line["type"] == "expire" and line["expired"])
    expired["expired"] = []


def change_transfer(lines):
    first(lines, "transferred", ok=True)["ok"] = False


def change_transferred_blocks(lines):
    first(lines, "transferred")["digest"] ^= 1


def end_transfer_that_is_not_in_flight(lines):
    first(lines, "transferred")["transfer"] += 1000


@pytest.mark.parametrize(
    "change",
    [
        change_decision,
        lose_decision,
        change_plan,
        change_length,
        forget_stop,
        commit_what_is_not_open,
        change_prompt,
        change_what_was_said,
        change_salt,
        change_number_of_choices,
        change_deadline,
        lose_expiry,
        change_transfer,
        change_transferred_blocks,
        end_transfer_that_is_not_in_flight,
    ],
)
async def test_changed_recording_is_told_apart_and_the_first_difference_named(recording, change):
    said: list[str] = []
    assert replay_lockstep(edited(recording, change), said.append) == 1
    assert said[0].startswith("journal: different at line ")
    assert said[1].startswith("  recorded: ")
    assert said[2].startswith("  replayed: ")


async def test_twin_that_is_told_other_inputs_makes_other_calls(recording):
    """The twin's check can fail by itself: each input matters."""
    inputs, verdict = check_journal(recording)
    assert verdict.difference is None
    assert check_twin(recording, inputs).difference is None
    stopped = next(iter(inputs.answers))
    failed = next(at for at, step in enumerate(inputs.steps) if step.failed is not None)
    for other in (
        msgspec.structs.replace(inputs, arrivals=inputs.arrivals[:-1]),
        msgspec.structs.replace(inputs, aborts=inputs.aborts[1:]),
        msgspec.structs.replace(inputs, wakes=inputs.wakes[1:]),
        msgspec.structs.replace(inputs, expiries=inputs.expiries[1:]),
        msgspec.structs.replace(inputs, expiries=[inputs.expiries[0] - 1, *inputs.expiries[1:]]),
        msgspec.structs.replace(inputs, moves=inputs.moves[1:]),
        msgspec.structs.replace(inputs, blocks={}),
        msgspec.structs.replace(inputs, failures={}),
        msgspec.structs.replace(inputs, steps=inputs.steps[:-1]),
        msgspec.structs.replace(
            inputs, answers={r: a for r, a in inputs.answers.items() if r != stopped}
        ),
        msgspec.structs.replace(
            inputs,
            steps=[
                msgspec.structs.replace(step, failed=None) if at == failed else step
                for at, step in enumerate(inputs.steps)
            ],
        ),
    ):
        assert check_twin(recording, other).difference is not None


async def test_damaged_recording_is_a_trace_error_with_its_line(recording):
    lines = recording.read_bytes().splitlines(keepends=True)
    recording.write_bytes(b"".join(lines[:50]) + b"{broken\n" + b"".join(lines[50:]))
    with pytest.raises(TraceError, match="line 51"):
        replay_lockstep(recording, lambda line: None)


async def test_recording_holds_what_the_run_did(recording):
    with RecordingReader(recording) as reader:
        entries = list(reader.entries())
    decisions = [decision for entry in entries for decision in entry.decisions]
    assert [entry.call.call for entry in entries] == list(range(len(entries)))
    assert any(isinstance(decision, Admitted) for decision in decisions)
    assert any(isinstance(decision, Preempted) for decision in decisions)
    times = [entry.call.now for entry in entries]
    assert times == sorted(times)
    plans = [e.call.step for e in entries if isinstance(e.call, Schedule) and e.call.step >= 0]
    commits = [e.call for e in entries if isinstance(e.call, Commit)]
    assert plans == [commit.step for commit in commits] == list(range(len(plans)))
    assert all(commit.started <= commit.ended <= commit.now for commit in commits)


async def test_the_command_line_tells_equal_from_different_by_its_exit_code(recording):
    app = typer.Typer()
    app.command()(replay)
    equal = CliRunner().invoke(app, [str(recording), "--lockstep"])
    assert equal.exit_code == 0, equal.output
    assert [line.partition(",")[0] for line in equal.output.splitlines()] == [
        "journal: equal",
        "twin: equal",
    ]
    changed = CliRunner().invoke(app, [str(edited(recording, change_decision)), "--lockstep"])
    assert changed.exit_code == 1
    assert "journal: different at line " in changed.output
    wrong = CliRunner().invoke(app, [str(DATA / "azure_sample.csv"), "--lockstep"])
    assert wrong.exit_code == 2
    assert wrong.stderr.startswith("error: ")
