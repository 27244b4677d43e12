"""Start and end of the server: ports, signals, a dying engine; each client gets one clear end (FR-11)."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from engine.core.errors import ConfigError
from gateway.server import LAST_WORDS_S, bind, url_of
from tests.gateway.live import gateway_config, live, scripted
from tests.reference.strict_sse import DONE, finishes, read_events

ROOT = Path(__file__).resolve().parents[2]
STREAM = {"prompt": "hi", "max_tokens": 400, "ignore_eos": True, "stream": True}


@contextmanager
def process(
    *,
    drain_s: float,
    crash_at_rows: int = 0,
    piece_bytes: int = 0,
    key_file: Path | None = None,
    max_queue: int = 1024,
    stand_still: bool = False,
    last_words_s: int = LAST_WORDS_S,
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its URL."""
    command = [
        sys.executable,
        "-m",
        "tests.gateway.serve_scripted",
        f"--max-queue={max_queue}",
        f"--last-words-s={last_words_s}",
        *(["--stand-still"] if stand_still else []),
        "--",
        str(drain_s),
        str(crash_at_rows),
        str(piece_bytes),
        *([] if key_file is None else [str(key_file)]),
    ]
    server = subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        yield server, server.stdout.readline().strip()
    finally:
        server.kill()
        server.communicate()


def wait_until_refused(url: str) -> None:
    """Connects until the server takes no more connections: it has noticed that it is to end.

    Raises:
        AssertionError: it still does after a minute.
    """
    address, deadline = httpx.URL(url), time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection((address.host, address.port or 0), 20).close()
        except ConnectionError:
            return
    raise AssertionError("the server still takes connections")


def outcome(server: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and standard error."""
    _, errors = server.communicate(timeout=60)
    return server.returncode, errors


def test_port_in_use_is_one_plain_sentence() -> None:
    with bind(gateway_config()) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as raised:
            bind(gateway_config(port=port))
    assert raised.value.message == (
        f"port {port} on 127.0.0.1 is in use; stop what listens there, or choose another with --port"
    )


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7"])
def test_address_that_cannot_be_listened_on_is_said(host: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on {host}:0: "):
        bind(gateway_config(host=host))


def test_address_is_told_as_clients_write_it() -> None:
    with bind(gateway_config()) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_lets_running_streams_finish_and_exits_with_0(number: signal.Signals) -> None:
    with process(drain_s=60) as (server, url), httpx.Client(base_url=url, timeout=60) as client:
        with client.stream("POST", "/v1/completions", json=STREAM | {"max_tokens": 60}) as stream:
            raw = stream.iter_bytes()
            first = next(raw)
            server.send_signal(number)
            events = read_events(first + b"".join(raw))
        assert finishes(events) == ["length"]
        assert events[-1] == DONE
        assert outcome(server) == (0, "")


def test_signal_takes_no_new_requests() -> None:
    with process(drain_s=60) as (server, url), httpx.Client(base_url=url, timeout=60) as client:
        with client.stream("POST", "/v1/completions", json=STREAM | {"max_tokens": 60}) as stream:
            raw = stream.iter_bytes()
            next(raw)
            server.send_signal(signal.SIGTERM)
            for _ in raw:
                pass
        with pytest.raises(httpx.TransportError):
            client.get("/health")
        assert outcome(server) == (0, "")


@pytest.mark.parametrize("num_signals", [1, 2])
def test_streams_that_outlast_the_drain_end_with_a_reason(num_signals: int) -> None:
    drain_s = 0.2 if num_signals == 1 else 60
    with (
        process(drain_s=drain_s, stand_still=True) as (server, url),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        with client.stream("POST", "/v1/completions", json=STREAM) as stream:
            raw = stream.iter_bytes()
            seen = next(raw)
            server.send_signal(signal.SIGTERM)
            if num_signals == 2:
                wait_until_refused(url)  # else the two could be one
                server.send_signal(signal.SIGTERM)
            events = read_events(seen + b"".join(raw))
        assert events[-1]["error"]["code"] == "shutting_down"
        assert "shut down" in events[-1]["error"]["message"]
        assert finishes(events) == []
        assert outcome(server) == (0, "")


def test_dying_model_runner_ends_each_stream_with_an_error_and_the_process_with_another_code() -> (
    None
):
    with (
        process(drain_s=20, crash_at_rows=2, stand_still=True) as (server, url),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        with client.stream("POST", "/v1/completions", json=STREAM) as stream:
            raw = stream.iter_bytes()
            seen = next(raw)
            last = client.post("/v1/completions", json=STREAM | {"stream": False})
            events = read_events(seen + b"".join(raw))
        assert last.status_code == 500
        assert events[-1]["error"] == {
            "message": "the model runner died",
            "type": "server_error",
            "param": None,
            "code": "executor_failed",
        }
        code, errors = outcome(server)
    assert code == 3
    assert errors.endswith("error: the model runner died\n")


def test_request_id_of_the_client_is_echoed_and_one_is_given_else() -> None:
    with live(scripted([b"a"])) as client:
        mine = client.get("/health", headers={"x-request-id": "trace-7"})
        bad = client.get("/health", headers={"x-request-id": "a b"})
        long = client.get("/nowhere", headers={"x-request-id": "x" * 200})
    assert mine.headers["x-request-id"] == "trace-7"
    assert bad.headers["x-request-id"].startswith("req-")
    assert long.headers["x-request-id"].startswith("req-")


def test_health_tells_how_full_the_pool_is() -> None:
    with live(scripted([b"a"])) as client:
        assert client.get("/health").json() == {
            "status": "ok",
            "model": "scripted",
            "running": 0,
            "waiting": 0,
            "total_blocks": 128,
            "free_blocks": 128,
        }
        assert client.head("/health").status_code == 200


def test_full_queue_is_429() -> None:
    with live(scripted(max_queue=0)) as client:
        refused = client.post("/v1/completions", json={"prompt": "hi"})
    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert refused.json()["error"]["code"] == "over_capacity"


def test_request_larger_than_the_pool_is_refused_and_the_next_one_served() -> None:
    with live(scripted([b"a"], num_blocks=16)) as client:
        large = client.post("/v1/completions", json={"prompt": "x" * 100, "max_tokens": 8})
        small = client.post("/v1/completions", json={"prompt": "x" * 20, "max_tokens": 8})
    assert large.status_code == 400
    assert "64" in large.json()["error"]["message"]
    assert small.status_code == 200
