"""What goes wrong while clients wait: each gets one clear end, the server goes on or exits as documented, and nothing is held."""

import json
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.core.config import CoreConfig
from engine.core.errors import ExecutorError
from engine.core.plan import Plan
from gateway.server import LAST_WORDS_S
from tests.gateway.live import (
    chunks_of,
    live,
    raw_post,
    read_until,
    scripted,
    wait_until,
    wait_until_free,
)
from tests.gateway.standstill import StandStill
from tests.gateway.test_server import outcome, process, wait_until_refused
from tests.reference.strict_sse import DONE, finishes, read_events, text_of
from traces.recording_writer import RecordingWriter

PATH = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "hi", "max_tokens": 300, "ignore_eos": True}
LONGER = LONG | {"max_tokens": 500}
END = b"0\r\n\r\n"


def num_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def settles(value: Any, wanted: Any, limit_s: float = 60) -> bool:
    """Whether `value()` comes to be `wanted`."""
    end = time.monotonic() + limit_s
    while value() != wanted and time.monotonic() < end:
        time.sleep(0.02)
    return bool(value() == wanted)


@contextmanager
def crowd(client: httpx.Client, num: int) -> Iterator[tuple[list[socket.socket], list[Any]]]:
    """Streams on raw sockets that have all begun, and as many answers at once that are under way."""
    with ExitStack() as stack, ThreadPoolExecutor(num) as pool:
        streams = [
            stack.enter_context(
                raw_post(client, PATH, LONGER | {"prompt": f"s{i}", "stream": True})
            )
            for i in range(num)
        ]
        whole = [
            pool.submit(client.post, PATH, json=LONGER | {"prompt": f"w{i}"}) for i in range(num)
        ]
        wait_until(client, running=2 * num)
        for stream in streams:
            stream.recv(1, socket.MSG_PEEK)
        yield streams, whole


def ends_with_one_error(stream: socket.socket, code: str) -> None:
    """The stream ends with one error event and no `[DONE]`, and its response is complete."""
    raw = b""
    while not raw.endswith(END):
        piece = stream.recv(65536)
        assert piece, f"closed after {raw[-200:]!r}"
        raw += piece
    assert raw.startswith(b"HTTP/1.1 200 OK\r\n")
    events = read_events(b"".join(chunks_of(raw)))
    assert [e["error"]["code"] for e in events if e != DONE and "error" in e] == [code]
    assert events[-1]["error"]["code"] == code
    assert DONE not in events
    assert finishes(events) == []


def fails_once(at_rows: int) -> Callable[[Plan], Exception | None]:
    """A fault in the first step of so many rows."""
    faults: list[Exception] = []

    def fault(plan: Plan) -> Exception | None:
        if len(plan.rows) < at_rows or faults:
            return None
        faults.append(ExecutorError("the device is gone"))
        return faults[0]

    return fault


def test_step_that_raises_ends_all_that_ran_in_it_and_the_server_goes_on() -> None:
    """The last of nine who come."""
    pace = StandStill()
    served = scripted(pace=pace, step_fault=fails_once(at_rows=9), num_blocks=2048)
    pace.attend(served.engine)
    with live(served) as client:
        client.get("/health")
        before = num_descriptors()
        with crowd(client, 4) as (streams, whole):
            assert client.post(PATH, json=LONG).status_code == 500
            for stream in streams:
                ends_with_one_error(stream, "executor_failed")
            for answer in whole:
                assert answer.result().status_code == 500
                assert answer.result().json()["error"]["code"] == "executor_failed"
        wait_until_free(client)
        after = client.post(PATH, json=LONG | {"max_tokens": 5})
        assert after.json()["usage"]["completion_tokens"] == 5
        client.close()
        assert settles(num_descriptors, before - 2)


def test_worker_that_dies_ends_everybody_and_the_process_with_3() -> None:
    with (
        process(drain_s=20, crash_at_rows=7, stand_still=True) as (server, url),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        with crowd(client, 3) as (streams, whole):
            assert client.post(PATH, json=LONG).status_code == 500
            for stream in streams:
                ends_with_one_error(stream, "executor_failed")
            for answer in whole:
                assert answer.result().status_code == 500
                assert answer.result().json()["error"]["message"] == "the model runner died"
        code, errors = outcome(server)
    assert code == 3
    assert errors.endswith("error: the model runner died\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_full_disk_ends_the_recording_and_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    writers: list[RecordingWriter] = []

    def record(config: CoreConfig) -> RecordingWriter:
        writers.append(RecordingWriter(Path("/dev/full"), config=config, model="scripted"))
        return writers[0]

    with live(scripted(record=record, num_blocks=1024)) as client:

        def recording() -> bool:
            return "\nkilburn_recording 1.0\n" in client.get("/metrics").text

        assert recording()
        while recording():
            events = read_events(client.post(PATH, json=LONG | {"stream": True}).content)
            assert events[-1] == DONE
        assert finishes(read_events(client.post(PATH, json=LONG | {"stream": True}).content))
        wait_until_free(client)
    writers[0].close()
    assert caplog.text.count("serving goes on") == 1
    assert settles(lambda: "kilburn-recording" in [t.name for t in threading.enumerate()], False)


def test_clock_that_jumps_back_delays_nobody_and_breaks_nothing() -> None:
    jumps = random.Random(3)
    drift = 0

    def clock() -> int:
        nonlocal drift
        if jumps.random() < 0.2:
            drift -= 3_600_000_000_000
        return max(0, time.monotonic_ns() + 10**15 + drift)

    with live(scripted(clock=clock, num_blocks=1024)) as client:
        with live(scripted(num_blocks=1024)) as sane:
            wanted = text_of(read_events(sane.post(PATH, json=LONG | {"stream": True}).content))
        for _ in range(3):
            events = read_events(client.post(PATH, json=LONG | {"stream": True}).content)
            assert finishes(events) == ["length"]
            assert text_of(events) == wanted
        wait_until_free(client)


@pytest.mark.parametrize("num_signals", [1, 2])
def test_signal_in_mid_stream_is_one_clear_end_for_everybody(num_signals: int) -> None:
    """Streamed, not streamed, still being sent: nobody is left without an answer, and nobody keeps the process until its last words are over."""
    drain_s = 0.1 if num_signals == 1 else 600
    with (
        process(drain_s=drain_s, stand_still=True, last_words_s=600) as (server, url),
        httpx.Client(base_url=url, timeout=60) as client,
        socket.create_connection((client.base_url.host, client.base_url.port or 0)) as half,
    ):
        half.settimeout(60)
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
        with crowd(client, 3) as (streams, whole):
            server.send_signal(signal.SIGTERM)
            if num_signals == 2:
                wait_until_refused(url)  # else the two could be one
                server.send_signal(signal.SIGTERM)
            for stream in streams:
                ends_with_one_error(stream, "shutting_down")
            for answer in whole:
                assert answer.result().status_code == 503
                assert answer.result().json()["error"]["code"] == "shutting_down"
            assert read_until(half, b"}}").startswith(b"HTTP/1.1 503 ")
            assert half.recv(1) == b""
        assert outcome(server) == (0, "")


@pytest.mark.slow
def test_client_that_does_not_read_keeps_the_process_no_longer_than_its_last_words() -> None:
    with (
        process(drain_s=60, piece_bytes=65536) as (server, url),
        httpx.Client(base_url=url, timeout=60) as client,
        raw_post(client, PATH, LONG | {"stream": True}, receive_buffer=4096),
    ):
        wait_until(client, running=1)
        time.sleep(0.5)  # so that its buffers are full
        begun = time.monotonic()
        server.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        server.send_signal(signal.SIGTERM)
        assert outcome(server) == (0, "")
        assert time.monotonic() - begun < LAST_WORDS_S + 3


def test_clients_of_every_kind_that_leave_at_every_moment_leave_no_descriptor() -> None:
    rng = random.Random(7)
    content = json.dumps(LONG | {"stream": True}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    with live(scripted(num_blocks=2048, pace=lambda plan: time.sleep(0.001))) as client:
        address = (client.base_url.host, client.base_url.port or 0)
        client.get("/health")
        before = num_descriptors()
        for _ in range(200):
            with socket.create_connection(address) as connection:
                connection.sendall((head + content)[: rng.randrange(len(head + content) + 1)])
        for _ in range(60):
            with socket.create_connection(address, timeout=60) as connection:
                connection.sendall(head + content)
                read_until(connection, b"data: ", rng.randrange(1, 6))
        wait_until_free(client)
        assert settles(num_descriptors, before)
