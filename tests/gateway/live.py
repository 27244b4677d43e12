"""A real server and a real engine around a scripted model, on a loopback socket, in a thread of its own."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.from_thread
import httpx
import msgspec

from engine.core.config import CoreConfig
from engine.core.plan import Plan
from engine.loop import Engine
from engine.scripted import ScriptedExecutor
from gateway.config import GatewayConfig
from gateway.engine import Served
from gateway.server import Server, bind, url_of
from gateway.server import run as run_loop
from gateway.tenants import Tenants
from tests.gateway.vocabulary import END, FIRST_PIECE, byte_chat, byte_codec
from traces.recording_writer import RecordingWriter

MODEL = "scripted"


def gateway_config(**settings: object) -> GatewayConfig:
    return msgspec.convert({"port": 0, "drain_s": 0.0, **settings}, GatewayConfig)


def scripted(
    pieces: Sequence[bytes] | None = None,
    *,
    num_blocks: int = 128,
    max_context: int = 512,
    max_queue: int = 1024,
    pace: Callable[[Plan], None] | None = None,
    step_fault: Callable[[Plan], Exception | None] | None = None,
    row_fault: Callable[[int, int], str | None] | None = None,
    tenants: Tenants | None = None,
    policy: str = "fcfs",
    max_batch: int = 64,
    host_blocks: int = 0,
    move_pace: Callable[[bool], None] | None = None,
    clock: Callable[[], int] = time.monotonic_ns,
    record: Callable[[CoreConfig], RecordingWriter] | None = None,
) -> Served:
    """A model that says `pieces`, a token each, then ends; without them, pseudo-random bytes without end.

    With `host_blocks` it preempts by swap. Whoever opens a recording by `record` closes it.
    """
    codec = byte_codec(pieces or ())
    answer = None if pieces is None else range(FIRST_PIECE, FIRST_PIECE + len(pieces))
    executor = ScriptedExecutor(
        num_blocks=num_blocks,
        block_size=4,
        max_context=max_context,
        vocab_size=codec.vocab_size,
        answer=None if answer is None else lambda prompt: answer,
        end_token=END,
        pace=pace,
        step_fault=step_fault,
        row_fault=row_fault,
        host_blocks=host_blocks,
        move_pace=move_pace,
    )
    config = msgspec.convert(
        {
            "memory": {"num_blocks": num_blocks, "block_size": 4, "host_blocks": host_blocks},
            "scheduler": {
                "max_context": max_context,
                "token_budget": 64,
                "max_batch": max_batch,
                "policy": policy,
                "preemption": "swap" if host_blocks else "recompute",
            },
        },
        CoreConfig,
    )
    engine = Engine(
        executor,
        config,
        codec,
        model_name=MODEL,
        clock=clock,
        recorder=None if record is None else record(config),
        max_queue_requests=max_queue,
    )
    return Served(engine, codec, byte_chat(codec), tenants or Tenants())


@contextmanager
def live(served: Served, **settings: object) -> Iterator[httpx.Client]:
    """A client of a running server of `served`. Stops the server at the end and raises here what it raised."""
    config = gateway_config(**settings)
    listener = bind(config)
    url = url_of(listener)
    ready = threading.Event()
    running: list[tuple[Server, anyio.from_thread.BlockingPortal]] = []
    failures: list[BaseException] = []

    async def main() -> None:
        server = Server(config, served)
        async with anyio.from_thread.BlockingPortal() as portal:
            running.append((server, portal))
            failure = await server.run(listener, ready.set)
            if failure is not None:
                failures.append(failure)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        # sse-starlette keeps one for each event loop on which it has served the live page's feed.
        left = {task for task in left if "_shutdown_watcher" not in repr(task)}
        if left:
            failures.append(AssertionError(f"tasks were left behind: {left}"))

    def run() -> None:
        try:
            run_loop(main)
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(60)
        with httpx.Client(base_url=url, timeout=60) as client:
            yield client
    finally:
        if thread.is_alive():
            server, portal = running[0]
            portal.start_task_soon(server.cut)
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"
    if failures:
        raise failures[0]


@contextmanager
def raw_post(
    client: httpx.Client, path: str, body: dict[str, Any], *, receive_buffer: int | None = None
) -> Iterator[socket.socket]:
    """A connection on which a request has been sent and nothing read; closed at the end if not before."""
    host, port = client.base_url.host, client.base_url.port
    assert port is not None
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.socket() as connection:
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(60)
        connection.connect((host, port))
        connection.sendall(head.encode() + content)
        yield connection


def read_until(connection: socket.socket, marker: bytes, times: int = 1) -> bytes:
    """What comes until `marker` has come so often."""
    seen = b""
    while seen.count(marker) < times:
        piece = connection.recv(65536)
        assert piece, f"the server closed after {seen[-200:]!r}"
        seen += piece
    return seen


def chunks_of(raw: bytes) -> list[bytes]:
    """The HTTP chunks of a complete response's body."""
    rest, chunks = raw.partition(b"\r\n\r\n")[2], []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        chunk, end, rest = rest[:length], rest[length : length + 2], rest[length + 2 :]
        assert end == b"\r\n"
        if length == 0:
            return chunks
        chunks.append(chunk)


def wait_until(client: httpx.Client, **health: int) -> None:
    """Asks `/health` until it says all of `health`.

    Raises:
        AssertionError: it did not within a minute.
    """
    deadline = time.monotonic() + 60
    while True:
        said = client.get("/health").json()
        if all(said[name] == value for name, value in health.items()):
            return
        assert time.monotonic() < deadline, f"wanted {health}, got {said}"


def wait_until_told(client: httpx.Client, series: str, value: float) -> None:
    """Asks `/metrics` until it says `value` of `series`, its name and labels as written.

    Raises:
        AssertionError: it did not within a minute.
    """
    deadline = time.monotonic() + 60
    while f"\n{series} {value}\n" not in client.get("/metrics").text:
        assert time.monotonic() < deadline, f"{series} never was {value}"


def wait_until_free(client: httpx.Client) -> None:
    """Asks `/health` until nothing runs or waits and the whole pool is free."""
    total = client.get("/health").json()["total_blocks"]
    wait_until(client, running=0, waiting=0, free_blocks=total)
