"""A replay's recording: lockstep repeats it whatever was simulated, it changes no figure, and others read it as a live one."""

import json
from array import array
from contextlib import ExitStack

import pytest
import typer
from typer.testing import CliRunner

from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig, SwapCosts
from engine.core.ids import RequestId, TimeNs
from engine.core.journal import Schedule, Submit
from engine.core.log import Admitted, Copied, Evicted, Forked, Preempted, Reparented, SwapStarted
from engine.core.plan import Idle, Plan, Request
from sim.cli import replay
from sim.fitted import fit_recording
from sim.lockstep import replay_lockstep
from sim.recorder import recorded
from sim.twin import SwapPath, run_twin
from tests.conftest import DATA
from tests.sim.report.crowd import FLAGS, crowd
from tests.sim.test_leaping_twin import Case, Uneven, records
from traces.formats import open_trace
from traces.recording import RecordingReader
from traces.schema import TraceRequest


def config(policy: str, preemption: str, open_plans: int, **memory) -> CoreConfig:
    return CoreConfig(
        memory=MemoryConfig(**{"num_blocks": 24, "block_size": 4, "host_blocks": 30} | memory),
        scheduler=SchedulerConfig(
            max_context=200,
            token_budget=24,
            max_batch=6,
            max_open_plans=open_plans,
            policy=policy,
            preemption=preemption,
            swap_costs=SwapCosts(block_bytes=100, link_bytes_per_s=1e9, prefill_tokens_per_s=1e7),
        ),
    )


def rows() -> list[TraceRequest]:
    """Two dozen requests, many at one instant, of three families of prompts."""
    made = []
    for i in range(24):
        prompt = 5 + 7 * i % 30
        ids = [1000 * (i % 3) + b if b < 2 else 10_000 + 10 * i + b for b in range(-(-prompt // 8))]
        made.append(TraceRequest(i, 60 * (i // 4), prompt, 1 + 11 * i % 40, array("q", ids)))
    return made


def run(path, core: CoreConfig, **options):
    with recorded(path, core, "toy", 8) as scheduler:
        ran = run_twin(
            rows(),
            [scheduler],
            Uneven(),
            hash_block_tokens=8,
            swap=SwapPath(block_bytes=100, bytes_per_s=1e9),
            **options,
        )
        scheduler.check_invariants()
    with RecordingReader(path) as reader:
        return ran, [record for entry in reader.entries() for record in entry.decisions]


def assert_lockstep(path) -> None:
    said: list[str] = []
    assert replay_lockstep(path, said.append) == 0, said
    assert [line.split(",")[0] for line in said] == ["journal: equal", "twin: equal"]


@pytest.mark.parametrize(
    ("policy", "preemption", "open_plans"),
    [("fcfs", "recompute", 2), ("priority", "swap", 2), ("fair", "auto", 2), ("fcfs", "swap", 1)],
)
@pytest.mark.parametrize("kind", ["one", "forks", "beams"])
def test_lockstep_holds(tmp_path, kind, policy, preemption, open_plans):
    options = {
        "one": {},
        "forks": {"num_sequences": 3},
        "beams": {"num_sequences": 2, "beam_seed": 1},
    }
    path = tmp_path / "run.jsonl"
    tight = config(policy, preemption, open_plans, num_blocks=24)
    _, decisions = run(path, tight, **options[kind])
    assert_lockstep(path)
    shown = {type(record) for record in decisions}
    assert {Admitted, Preempted} <= shown
    assert kind == "one" or {Forked, Copied} <= shown
    assert kind != "beams" or Reparented in shown
    assert preemption != "swap" or SwapStarted in shown


def test_shared_prefixes_are_in_it(tmp_path):
    path = tmp_path / "run.jsonl"
    _, decisions = run(path, config("fcfs", "recompute", 2))
    assert any(isinstance(record, Evicted) for record in decisions)
    assert any(isinstance(record, Admitted) and record.shared for record in decisions)
    assert_lockstep(path)


@pytest.mark.parametrize("seed", range(16))
def test_it_changes_no_record_and_lockstep_holds_for_each_replica(tmp_path, seed):
    case = Case(seed)
    if case.reservation is not None:
        case.reservation = None
    leaping = case.run(leaps=True)
    paths = [tmp_path / f"{number}.jsonl" for number in range(case.replicas)]
    with ExitStack() as stack:
        schedulers = [stack.enter_context(recorded(p, case.config, "toy", 8)) for p in paths]
        case.scheduler = lambda: schedulers.pop(0)
        stepped = case.run(leaps=True)
    assert records(stepped) == records(leaping)
    for path in paths:
        assert_lockstep(path)


def test_asked_again_at_an_instant_with_nothing_new_it_is_asked_once(tmp_path):
    """The live loop has one boundary after a commit; the replica may come back at the same instant for an input before it."""
    path = tmp_path / "run.jsonl"
    with recorded(path, config("fcfs", "recompute", 2), "toy", 0) as scheduler:
        for _ in range(2):
            assert isinstance(scheduler.schedule(TimeNs(7)), Idle)
        scheduler.submit(Request(RequestId(0), 4, 2), TimeNs(7))
        assert isinstance(scheduler.schedule(TimeNs(7)), Plan)
    with RecordingReader(path) as reader:
        calls = [entry.call for entry in reader.entries()]
    assert [type(call) for call in calls] == [Schedule, Submit, Schedule]
    assert [call.now for call in calls] == [7, 8, 9]


def test_a_skipped_call_is_told_apart(tmp_path):
    """What the identity above would not hide."""
    path = tmp_path / "run.jsonl"
    run(path, config("fcfs", "recompute", 2))
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if '"type":"commit"' in line)
    lines[at] = lines[at].replace('"now":', '"now":9')
    path.write_text("\n".join(lines) + "\n")
    assert replay_lockstep(path, lambda line: None) == 1


def invoke(*arguments) -> str:
    app = typer.Typer()
    app.command()(replay)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_records_and_reads_what_it_recorded(tmp_path):
    trace, path = crowd(tmp_path), tmp_path / "run.jsonl.gz"
    plain, taped = tmp_path / "plain.json", tmp_path / "taped.json"
    invoke(trace, *FLAGS, "--json", plain)
    said = invoke(trace, *FLAGS, "--json", taped, "--record", path)
    assert f"recorded the run: kilburn inspect {path}" in said
    first, second = (json.loads(file.read_text()) for file in (plain, taped))
    assert first["throughput"].pop("plans") < second["throughput"].pop("plans")
    assert first == second
    assert "twin: equal" in invoke(path, "--lockstep")
    assert fit_recording(path).num_steps == second["throughput"]["steps"]
    again = tmp_path / "again.json"
    invoke(path, "--cost", f"fitted:{path}", "--json", again)
    figures = json.loads(again.read_text())
    assert figures["requests"]["done"] == second["requests"]["done"]
    assert figures["e2e_ms"]["p50"] == pytest.approx(second["e2e_ms"]["p50"], rel=0.05)


def test_hash_ids_are_recorded_and_one_replica_is_chosen(tmp_path):
    path, trace = tmp_path / "run.jsonl", DATA / "mooncake_sample.jsonl"
    flags = ("--replicas", 3, "--record", path, "--record-replica", 1, "--limit", 60)
    assert "recorded replica 1 of 3" in invoke(trace, *flags)
    assert "twin: equal" in invoke(path, "--lockstep")
    source, read = open_trace(trace), open_trace(path)
    assert read.hash_block_tokens == source.hash_block_tokens
    sent = list(source.requests())[1:60:3]
    for mine, other in zip(read.requests(), sent, strict=True):
        assert (mine.num_prompt, mine.num_output) == (other.num_prompt, other.num_output)
        assert len(mine.hash_ids) == len(other.hash_ids)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--record-replica", "1"], "there is no replica 1, only replica 0"),
        (
            ["--replicas", "2", "--record-replica", "2"],
            "there is no replica 2, only replicas 0 to 1",
        ),
        (["--allocator", "max"], "only paged memory has blocks to record"),
    ],
)
def test_what_cannot_be_recorded_is_refused(tmp_path, flags, message):
    app = typer.Typer()
    app.command()(replay)
    path = tmp_path / "run.jsonl"
    result = CliRunner().invoke(app, [str(crowd(tmp_path)), "--record", str(path), *flags])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not path.exists()


def test_the_trace_is_not_written_over(tmp_path):
    trace = crowd(tmp_path)
    before = trace.read_bytes()
    app = typer.Typer()
    app.command()(replay)
    assert CliRunner().invoke(app, [str(trace), "--record", str(trace)]).exit_code == 2
    assert trace.read_bytes() == before
