"""The inspector's page holds, for every moment, the map that the core has there; and for every request what the log says of it."""

import base64
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from engine.core.errors import TraceError
from engine.core.journal import Schedule
from engine.core.log import Copied, Ended, Preempted, SwapStarted
from engine.core.policy import youngest_victim
from tests.sim.test_lockstep import record_crowd
from tests.sim.test_lockstep_features import Mix, recorded
from traces.inspector import moments as moments_module
from traces.inspector import pack
from traces.inspector.moments import Walk, look
from traces.inspector.pack import build_page
from traces.recording import RecordingReader
from traces.rerun import Rerun
from traces.viewer.delta import RUN_LENGTH


@pytest.fixture(params=["swap", "recompute", "priority"])
async def recording(request, tmp_path) -> Path:
    path = tmp_path / "run.jsonl.gz"
    limits = {
        "swap": {},
        "recompute": {"host_blocks": 0, "preemption": "recompute"},
        "priority": {"policy": "priority"},
    }
    await record_crowd(path, clients=40, faults=True, virtual=True, **limits[request.param])
    return path


def page_of(path: Path, *, partial: bool = False) -> tuple[str, Walk]:
    found = look(path, partial=partial)
    walk = Walk(path, found)
    return build_page(path, found, walk, walk.moments()), walk


def unpacked(page: str) -> dict:
    parts = re.findall(
        r'<script type="application/octet-stream" id="([^"]+)">([^<]*)</script>', page
    )
    return {name: json.loads(gzip.decompress(base64.b64decode(text))) for name, text in parts}


class Drawn:
    """What the page's map holds, kept by the rules of the delta format."""

    def __init__(self) -> None:
        self.columns = np.zeros((0, 5), np.int64)
        self.others: dict[int, list[int]] = {}

    def apply(self, delta: dict) -> None:
        if delta.get("total"):
            self.columns = np.tile(np.array([0, 0, -1, -1, -1], np.int64), (delta["total"], 1))
            self.others = {}
        runs = np.array(delta.get("runs", []), np.int64).reshape(-1, RUN_LENGTH)
        for first, count, *values in runs.tolist():
            self.columns[first : first + count] = values
            if values[-1] >= 0:
                self.columns[first : first + count, -1] += np.arange(count)
        for frame, *holders in delta.get("others", []):
            self.others[frame] = holders
            if not holders:
                del self.others[frame]


def core_maps(path: Path) -> list[tuple[np.ndarray, dict[int, list[int]]]]:
    """The core's own map after each plan, and at the end."""
    maps = []
    with RecordingReader(path) as reader:
        core = Rerun(reader.header.config)

        def note() -> None:
            frames = core.scheduler.frames()
            columns = (frames.state, frames.refs, frames.request, frames.index, frames.column)
            others: dict[int, list[int]] = {}
            for frame, *holder in zip(
                frames.other_frames.tolist(),
                frames.other_requests.tolist(),
                frames.other_indexes.tolist(),
                strict=True,
            ):
                others.setdefault(frame, []).extend(holder)
            maps.append((np.stack(columns, axis=1).astype(np.int64), others))

        for entry in reader.entries():
            core.make(entry.call)
            if isinstance(entry.call, Schedule) and entry.call.step >= 0:
                note()
        note()
    return maps


def check_maps(data: dict, maps: list) -> None:
    index, at = data["index"], 0
    for number, start in enumerate(index["starts"]):
        piece, drawn = data[f"piece-{number}"], Drawn()
        assert start == at
        drawn.apply(piece["key"])
        for change, numbers, _ in piece["moments"]:
            drawn.apply(change)
            columns, others = maps[at]
            np.testing.assert_array_equal(drawn.columns, columns)
            assert drawn.others == others
            told = dict(zip(index["numbers"], numbers, strict=True))
            states = np.bincount(columns[:, 0], minlength=5)
            assert told["free"] == states[0]
            assert told["cached"] == states[1]
            assert told["held"] == states[2] + states[3]
            assert told["moving"] == states[4]
            at += 1
    assert at == index["moments"] == len(maps)


def test_every_moment_of_every_piece_is_the_cores_map(recording, monkeypatch) -> None:
    monkeypatch.setattr(pack, "LEAST", 4)
    page, _ = page_of(recording)
    data = unpacked(page)
    assert len(data["index"]["starts"]) > 5
    check_maps(data, core_maps(recording))
    assert page == page_of(recording)[0]


def test_long_recording_is_thinned_and_ends_where_it_ended(recording, monkeypatch) -> None:
    monkeypatch.setattr(moments_module, "MOST_MOMENTS", 50)
    data = unpacked(page_of(recording)[0])
    every, maps = data["index"]["every"], core_maps(recording)
    assert every == -(-len(maps) // 50)
    check_maps(data, [*maps[:-1:every], maps[-1]])


def test_stories_tell_what_the_log_says(recording) -> None:
    data = unpacked(page_of(recording)[0])
    index = data["index"]["requests"]
    stories = dict(zip(index["id"], data["stories-0"], strict=True))
    with RecordingReader(recording) as reader:
        records = [record for entry in reader.entries() for record in entry.decisions]
    preempted = [record for record in records if isinstance(record, Preempted)]
    assert preempted
    for request in index["id"]:
        mine = [record for record in preempted if record.request == request]
        said = [(step, text) for step, _, kind, text in stories[request] if kind == "preempt"]
        assert [step for step, _ in said] == [record.step for record in mine]
        for record, (_, text) in zip(mine, said, strict=True):
            asking = "it" if record.asking == request else f"request {record.asking}"
            assert text.startswith(f"Preempted: {asking} needed one more block, and none of the 20")
            assert f"By {record.mode}: " in text
            assert ("the last by class" in text) == (data["index"]["policy"] == "priority")
        times = [ms for _, ms, _, _ in stories[request]]
        assert stories[request][0][2] == "arrive"
        assert min(times) == times[0] >= 0
    told = [kind for lines in stories.values() for _, _, kind, _ in lines]
    assert told.count("copy") == sum(isinstance(record, Copied) for record in records)
    assert index["preemptions"] == [
        sum(record.request == request for record in preempted) for request in index["id"]
    ]
    ended = {record.request for record in records if isinstance(record, Ended)}
    assert all(index["end"][index["id"].index(request)] for request in ended)
    if any(isinstance(record, SwapStarted) for record in records):
        assert any("move out to the host" in t for s in stories.values() for *_, t in s)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_who_gave_way_and_who_was_immune_is_what_the_core_chose(
    tmp_path, policy, monkeypatch
) -> None:
    path = tmp_path / "run.jsonl"
    mix = Mix(widths=(1, 1, 2, 3), aborts=0.03, failures=0.1, num_blocks=16, policy=policy)
    recorded(path, mix, seed=1)
    choices: list[tuple[int, list[int], set[int]]] = []

    def watched(table, running, known, asking):
        victim = youngest_victim(table, running, known, asking)
        if victim is not None:
            ran = list(dict.fromkeys(table.request[running].tolist()))
            progressed = set(table.request[running[known > table.floor[running]]].tolist())
            choices.append((int(table.request[victim]), ran, set(ran) - progressed))
        return victim

    monkeypatch.setattr("engine.core.pressure.youngest_victim", watched)
    _, walk = page_of(path)
    told = [
        (step, text)
        for story in walk.stories.of.values()
        for step, _, kind, text in story.lines
        if kind == "preempt"
    ]
    monkeypatch.undo()
    with RecordingReader(path) as reader:
        records = [record for entry in reader.entries() for record in entry.decisions]
    preempted = [record for record in records if isinstance(record, Preempted)]
    assert [record.request for record in preempted] == [victim for victim, _, _ in choices]
    expected = []
    immune_ones = 0
    for record, (victim, ran, immune) in zip(preempted, choices, strict=True):
        after = ran[ran.index(victim) + 1 :]
        assert set(after) <= immune
        immune_ones += bool(after)
        names = [str(request) for request in after]
        listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
        plural = "s" if len(names) > 1 else ""
        end = f" of the {len(ran)} requests that ran"
        end += f", except request{plural} {listed}, immune because" if after else "."
        expected.append((record.step, end))
    assert len(told) == len(expected)
    assert immune_ones, "the recording has something to tell"
    for step, end in expected:
        at = next(i for i, (when, text) in enumerate(told) if when == step and end in text)
        told.pop(at)


def test_cut_recording_is_refused_and_shown_when_asked(recording, tmp_path) -> None:
    cut = tmp_path / "cut.jsonl"
    lines = gzip.decompress(recording.read_bytes()).splitlines(keepends=True)
    cut.write_bytes(b"".join(lines[: len(lines) // 2]))
    with pytest.raises(TraceError, match=r"was cut short here.*; --partial shows what is there"):
        look(cut, partial=False)
    data = unpacked(page_of(cut, partial=True)[0])
    assert "was cut short here" in data["index"]["cut"]
    assert data["index"]["moments"] > 10
    assert "" in data["index"]["requests"]["end"]


def test_recording_that_does_not_follow_from_its_calls_is_refused(recording, tmp_path) -> None:
    lines = gzip.decompress(recording.read_bytes()).splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"type":"grow"' in line)
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_bytes(b"".join([*lines[:at], *lines[at + 1 :]]))
    found = look(wrong, partial=False)
    with pytest.raises(
        TraceError, match="does not follow from its own calls here; `kilburn replay"
    ):
        list(Walk(wrong, found).moments())
