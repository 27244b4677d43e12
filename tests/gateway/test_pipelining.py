"""Requests that are sent before the one before them is answered: each is answered in its turn, and nobody who has left is worked for."""

import json
import socket
import struct
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.gateway.live import chunks_of, live, read_until, scripted, wait_until, wait_until_free

VERSION = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
RESET = struct.pack("ii", 1, 0)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A server whose answers take a minute."""
    served = scripted(
        pace=lambda plan: time.sleep(0.01), num_blocks=8192, max_context=8192, max_batch=8
    )
    with live(served, keep_alive_s=1) as client:
        # Else a connection that was idle for a second may be closed in the moment in which it is used again.
        client.headers["connection"] = "close"
        yield client


def connect(client: httpx.Client) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port), 60)  # type: ignore[arg-type]


def generation(*, stream: bool, max_tokens: int = 6000) -> bytes:
    body = json.dumps({"prompt": "hi", "max_tokens": max_tokens, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize("abrupt", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("apart", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_client_that_leaves_takes_its_requests_with_it_however_many_wait(
    client: httpx.Client, stream: bool, apart: bool, abrupt: bool
) -> None:
    with connect(client) as connection:
        if apart:
            connection.sendall(generation(stream=stream))
            wait_until(client, running=1)
            connection.sendall(VERSION + generation(stream=stream))
            time.sleep(0.05)  # long enough to be read
        else:
            connection.sendall(generation(stream=stream) + VERSION + generation(stream=stream))
            wait_until(client, running=1)
        if abrupt:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    wait_until_free(client)


@pytest.mark.parametrize("count", [2, 17, 100])
def test_requests_are_answered_in_the_order_in_which_they_came(
    client: httpx.Client, count: int
) -> None:
    with connect(client) as connection:
        for i in range(count):
            connection.sendall(generation(stream=False, max_tokens=1 + i % 3))
        said = read_until(connection, b'"usage"', count)
    lengths = [int(piece.split(b",")[0]) for piece in said.split(b'"completion_tokens":')[1:]]
    assert lengths == [1 + i % 3 for i in range(count)]
    assert said.count(b"HTTP/1.1 200 OK") == count


def test_what_is_no_http_is_never_answered_in_the_midst_of_a_stream(client: httpx.Client) -> None:
    with connect(client) as connection:
        connection.sendall(generation(stream=True))
        said = read_until(connection, b"data: ")
        connection.sendall(VERSION + b"no HTTP\r\n\r\n")
        while more := connection.recv(65536):
            said += more
    assert said.count(b"HTTP/1.1 ") == 1
    chunks_of(said + b"0\r\n\r\n")  # whole chunks, and no last one
    wait_until_free(client)


@pytest.mark.parametrize("drips", [1, 100])
def test_body_that_nobody_reads_does_not_hold_a_connection(
    client: httpx.Client, drips: int
) -> None:
    began = time.monotonic()
    with connect(client) as connection:
        connection.sendall(b"POST /nothing HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
        read_until(connection, b"not_found")
        connection.settimeout(0.05)
        closed = False
        while not closed and time.monotonic() < began + 60:
            try:
                if drips:
                    drips -= 1
                    connection.sendall(b"x")
                closed = connection.recv(100) == b""
            except TimeoutError:
                pass
            except ConnectionError:
                closed = True
    assert closed
