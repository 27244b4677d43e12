"""Recordings as files: what is written is read again, damage is named by its line, and a bad disk stops nobody."""

import gzip
import os
import re
from pathlib import Path

import numpy as np
import pytest

from engine.core.content import TokenContent
from engine.core.errors import ConfigError, TraceError
from engine.core.ids import RequestId
from engine.core.journal import Abort, Commit, Expire, Schedule, Submit, Transferred
from engine.core.log import Admitted, Ended, Grew, Preempted, Released, SwapEnded
from engine.core.plan import Request
from engine.core.scheduler import Scheduler
from engine.desk import Desk
from tests.engine.toy import core_config
from traces.recording import Prompt, RecordingReader, Tokens
from traces.recording_writer import RecordingWriter

CALLS = [
    (Submit(0, 5, 0, 6, None, None), []),
    (Submit(1, 7, 1, 600, 3, "context_exceeded"), []),
    (Schedule(2, 9, "plan", 0, 1, 6, 123), [Admitted(0, 0, 0, (3, 4), 0), Grew(0, (0, 1), (5, 6))]),
    (Schedule(3, 9, "blocked"), []),
    (
        Commit(4, 20, 0, 10, 19, ((0, 2), (3, 3)), None),
        [Preempted(0, 0, "recompute", 7, 0, 0, 0), Released(0, 0, 3)],
    ),
    (Commit(5, 30, 1, 20, 29, (), "the device hiccuped"), []),
    (Abort(6, 31, 0, ended=True), [Ended(2, 0, -1, 4)]),
    (Expire(7, 32, (1, 2)), [Ended(2, 1, -1, 5), Ended(2, 2, -1, 5)]),
    (
        Transferred(8, 33, 4, ok=False, started=21, ended=25, digest=77),
        [SwapEnded(2, 3, 4, ok=False)],
    ),
]


def written(path: Path, **options) -> Path:
    writer = RecordingWriter(path, config=core_config(block_size=4), model="toy", **options)
    for call, decisions in CALLS:
        writer.call(call, decisions)
    writer.close()
    assert writer.failure is None
    return path


def prompts(path: Path) -> list[Prompt]:
    with RecordingReader(path) as reader:
        return [line for _, line in reader.lines() if isinstance(line, Prompt)]


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_every_call_is_read_as_it_was_written(tmp_path, name):
    with RecordingReader(written(tmp_path / name)) as reader:
        assert reader.header.model == "toy"
        assert reader.header.config == core_config(block_size=4)
        assert not reader.header.has_tokens
        entries = list(reader.entries())
    assert [(entry.call, list(entry.decisions)) for entry in entries] == CALLS
    assert [entry.line for entry in entries] == [2, 3, 4, 7, 8, 11, 12, 14, 17]


def test_name_that_ends_in_gz_is_compressed(tmp_path):
    plain, packed = written(tmp_path / "run.jsonl"), written(tmp_path / "run.jsonl.gz")
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


def test_content_is_dense_ids_that_equal_prefixes_share(tmp_path):
    path = tmp_path / "run.jsonl"
    writer = RecordingWriter(path, config=core_config(block_size=4), model="toy")
    desk = Desk(Scheduler(core_config(block_size=4)), lambda: 0, writer)
    for number, tokens in enumerate(
        [
            [1, 2, 3, 4, 5, 6, 7, 8, 9],
            [1, 2, 3, 4, 5, 6, 7, 8],
            [1, 2, 3, 4, 9, 9, 9, 9],
            [5, 6, 7, 8],
            [1, 2, 3],
        ]
    ):
        prompt = np.array(tokens, np.int32)
        writer.prompt(RequestId(number), prompt)
        desk.submit(
            Request(RequestId(number), len(tokens), 2, content=TokenContent(prompt), salt="s3cret")
        )
    writer.sampled(0, np.array([7], np.int32))
    writer.close()
    with RecordingReader(path) as reader:
        calls = [entry.call for entry in reader.entries()]
    assert [call.content for call in calls] == [(0, 1), (0, 1), (0, 2), (3,), ()]
    assert prompts(path) == []
    assert b'tokens":[' not in path.read_bytes()
    assert b"s3cret" not in path.read_bytes()


def test_tokens_are_kept_on_request(tmp_path):
    path = tmp_path / "run.jsonl"
    writer = RecordingWriter(path, config=core_config(), model="toy", record_tokens=True)
    writer.prompt(RequestId(0), np.array([1, 2, 3], np.int32))
    writer.sampled(0, np.array([7, 8], np.int32))
    writer.close()
    with RecordingReader(path) as reader:
        assert reader.header.has_tokens
        lines = [line for _, line in reader.lines()]
    assert lines[:2] == [Prompt(0, (1, 2, 3)), Tokens(0, (7, 8))]


# -- bad disks ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_full_disk_ends_the_recording_says_so_once_and_stops_nobody(caplog):
    writer = RecordingWriter(Path("/dev/full"), config=core_config(), model="toy")
    for _ in range(5000):
        for call, decisions in CALLS:
            writer.call(call, decisions)
    writer.close()
    writer.close()
    writer._thread.join()
    assert writer.failure == "No space left on device"
    assert caplog.text.count("serving goes on") == 1


def test_disk_that_falls_behind_ends_the_recording_and_holds_nobody_up(tmp_path, caplog):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = RecordingWriter(path, config=core_config(), model="toy", most_pending_bytes=1 << 18)
    for _ in range(2000):
        for call, decisions in CALLS:
            writer.call(call, decisions)
    writer.close()
    assert writer.failure == "the disk cannot keep up"
    assert caplog.text.count("serving goes on") == 1
    os.close(reading)
    writer._thread.join()


def test_recording_that_cannot_be_created_is_a_config_error_that_names_it(tmp_path):
    path = tmp_path / "missing" / "run.jsonl"
    with pytest.raises(ConfigError, match=r"missing/run\.jsonl: No such file"):
        RecordingWriter(path, config=core_config(), model="toy")


# -- damaged files -----------------------------------------------------------------------------------------------


def read_all(path: Path) -> None:
    with RecordingReader(path) as reader:
        for _ in reader.entries():
            pass


def replace_line(path: Path, number: int, line: bytes | None) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1 : number] = [] if line is None else [line + b"\n"]
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize(
    ("number", "line", "message"),
    [
        (1, b"not json", "line 1: this is no recording by"),
        (1, b'{"type":"close","calls":0}', "line 1: this is no recording by"),
        (1, b'{"format":"kilburn-trace","version":1}', "line 1: this is a trace, no recording"),
        (3, b'{"type":"submit"', "line 3: not a line of a recording"),
        (3, b'{"type":"submit","call":"one"}', r"line 3: not a line of a recording: .*\$\.call"),
        (3, b'{"type":"surprise"}', r"line 3: not a line of a recording: .*surprise"),
        (3, None, "line 3: call 2 stands where call 1 should"),
        (2, b'{"type":"end","step":0,"request":0,"index":0,"reason":1}', "line 2: a decision"),
        (19, b'{"type":"close","calls":11}', "line 19: 11 calls were made, but 9 are here"),
        (19, None, "line 19: the recording was cut short here"),
    ],
)
def test_damage_is_named_by_its_line(tmp_path, number, line, message):
    path = written(tmp_path / "run.jsonl")
    replace_line(path, number, line)
    with pytest.raises(TraceError, match=message):
        read_all(path)


def test_what_stands_after_the_last_line_is_damage(tmp_path):
    path = written(tmp_path / "run.jsonl")
    path.write_bytes(path.read_bytes() + b'{"type":"close","calls":9}\n')
    with pytest.raises(TraceError, match="line 20: there is something after"):
        read_all(path)


def test_recording_of_another_version_is_refused(tmp_path):
    path = written(tmp_path / "run.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"version":3', b'"version":9', 1))
    with pytest.raises(TraceError, match="has version 9; this program reads version 3"):
        read_all(path)


@pytest.mark.parametrize(
    ("setting", "value", "where"),
    [
        (b"num_blocks", b"400000000000", r"config\.memory\.num_blocks"),
        (b"num_blocks", b"0", r"config\.memory\.num_blocks"),
        (b"host_blocks", b"400000000000", r"config\.memory\.host_blocks"),
        (b"hash_block_tokens", b"99999999999", "hash_block_tokens"),
        (b"hash_block_tokens", b"-1", "hash_block_tokens"),
    ],
)
def test_settings_that_no_machine_could_have_are_named(tmp_path, setting, value, where):
    path = written(tmp_path / "run.jsonl")
    given = re.sub(
        rb'"%s":\d+' % setting, b'"%s":%s' % (setting, value), path.read_bytes(), count=1
    )
    path.write_bytes(given)
    with pytest.raises(TraceError, match=rf"line 1: the recording's settings .*\$\.{where}"):
        read_all(path)


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_cut_file_gives_what_is_whole_and_then_the_error(tmp_path, keep):
    plain = written(tmp_path / "run.jsonl").read_bytes()
    packed = tmp_path / "run.jsonl.gz"
    packed.write_bytes(gzip.compress(plain)[: int(len(gzip.compress(plain)) * keep)])
    with pytest.raises(TraceError, match=r"damaged here|is no recording|cut short"):
        read_all(packed)


def test_file_that_is_not_gzip_is_damage(tmp_path):
    path = tmp_path / "run.jsonl.gz"
    path.write_bytes(b"plain text")
    with pytest.raises(TraceError, match="line 1: the file is damaged here"):
        read_all(path)


def test_missing_file_is_a_trace_error(tmp_path):
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        RecordingReader(tmp_path / "none.jsonl")
