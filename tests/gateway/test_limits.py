"""How much of a request is taken, and how slowly: heads and bodies. Over real connections, because a parser stands between."""

import json
import select
import socket

import httpx
import pytest

from tests.gateway.live import live, scripted, wait_until_free
from tests.gateway.test_bad_input import error_of


def raw(client: httpx.Client, *pieces: bytes) -> bytes:
    """What the server says to `pieces`, sent as they are, until it closes the connection."""
    address = (client.base_url.host, client.base_url.port)
    with socket.create_connection(address, 60) as connection:
        for piece in pieces:
            connection.sendall(piece)
        said = b""
        while more := connection.recv(65536):
            said += more
        return said


def test_large_headers_are_refused_and_the_connection_goes_on() -> None:
    with live(scripted([b"a"]), max_header_bytes=4000) as client:
        assert client.get("/health", headers={"x-fill": "x" * 3000}).status_code == 200
        for request in (
            {"headers": {"x-fill": "x" * 4000}},
            {"headers": {f"x-{i}": "" for i in range(1000)}},
            {"params": {"q": "x" * 4000}},
        ):
            error = error_of(client.get("/health", **request), 431)  # type: ignore[arg-type]
            assert error["code"] == "headers_too_large"
        assert client.get("/health").status_code == 200


def test_head_that_never_ends_is_cut_off_at_the_limit() -> None:
    def endless() -> bytes:
        fill = b"x" * 65536
        return raw(client, b"GET / HTTP/1.1\r\nhost: x\r\nx-fill: ", *[fill] * 8)

    with live(scripted([b"a"]), max_header_bytes=4000) as client:
        try:
            said = endless()
        except (
            ConnectionError
        ):  # cut off while sending: the answer may be lost with what was not read
            said = b""
        assert said == b"" or said.startswith(b"HTTP/1.1 431 ")
        address = (client.base_url.host, client.base_url.port)
        with socket.create_connection(address, 60) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nx-fill: ")
            # What the server reads together with the beginning does not count, and how much that is lies with its speed.
            while not select.select([connection], [], [], 0.02)[0]:
                connection.sendall(b"x" * 1000)
            said = b"".join(iter(lambda: connection.recv(65536), b""))
            head, _, body = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 431 ")
        assert json.loads(body)["error"]["code"] == "headers_too_large"


def test_head_that_does_not_come_is_not_waited_for() -> None:
    with live(scripted([b"a"]), keep_alive_s=1) as client:
        assert raw(client) == b""
        said = raw(client, b"GET / HTTP/1.1\r\nhost")
        assert said.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"request_timeout"' in said


def test_body_that_does_not_come_is_not_waited_for() -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"
    with live(scripted([b"a"]), body_s=0.2) as client:
        said = raw(client, head, b'{"prompt": ')
        assert said.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in said
        assert b'"code":"request_timeout"' in said
        wait_until_free(client)


def test_trailers_are_dropped() -> None:
    body = b'{"prompt": "hi"}'
    request = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        + b"%x\r\n%s\r\n0\r\nx-late: %s\r\n\r\n" % (len(body), body, b"x" * 9000)
    )
    with live(scripted([b"a"]), max_header_bytes=4000) as client:
        assert raw(client, request).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("chunked", [True, False])
def test_body_over_the_limit_is_refused_however_it_comes(chunked: bool) -> None:
    content = b'{"prompt": "' + b"x" * 200_000
    with live(scripted([b"a"]), max_body_bytes=1000) as client:
        body = iter([content]) if chunked else content
        error = error_of(client.post("/v1/completions", content=body), 413)
        assert error["code"] == "body_too_large"
        assert client.get("/health").status_code == 200


def test_long_token_lists_are_decoded() -> None:
    with live(scripted([b"a"])) as client:
        tokens = [7] * 20_000
        answer = client.post("/detokenize", json={"tokens": tokens})
        assert answer.json()["prompt"] == "\x04" * 20_000
