"""Clients of HTTP/1.0, such as `ab` and old proxies: no chunks, which they would take for text; a body ends with the connection."""

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.gateway.live import live, scripted

PIECES = [b"Page ", b"frames", b" hold", b" tokens."]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with live(scripted(PIECES)) as client:
        yield client


def ask(
    client: httpx.Client, version: str, path: str, body: object = None, also: str = ""
) -> tuple[str, bytes]:
    """Head, in lower case, and body of the answer up to where the server closes."""
    content = b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    length = "" if body is None else f"content-length: {len(content)}\r\n"
    head = f"{method} {path} HTTP/{version}\r\nhost: x\r\nconnection: close\r\n{length}{also}\r\n"
    with socket.create_connection((client.base_url.host, client.base_url.port), 10) as connection:
        connection.sendall(head.encode() + content)
        said = b""
        while more := connection.recv(65536):
            said += more
    got, _, rest = said.partition(b"\r\n\r\n")
    return got.decode().lower(), rest


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_ends_with_the_connection_and_is_not_chunked(
    client: httpx.Client, path: str
) -> None:
    prompt = (
        {"prompt": "hi"}
        if path == "/v1/completions"
        else {"messages": [{"role": "user", "content": "hi"}]}
    )
    head, body = ask(client, "1.0", path, {**prompt, "stream": True}, "connection: keep-alive\r\n")
    assert " 200 " in head.partition("\r\n")[0]
    assert "transfer-encoding" not in head
    assert "content-length" not in head
    assert head.count("connection:") == 1, "also where the client asks to keep it"
    assert "connection: close" in head
    events = body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-2]]
    text = "".join(
        each.get("text") or each.get("delta", {}).get("content") or "" for each in chunks
    )
    assert text == b"".join(PIECES).decode()
    chunked, _ = ask(client, "1.1", path, {**prompt, "stream": True})
    assert "transfer-encoding: chunked" in chunked, "HTTP/1.1 has them as before"


@pytest.mark.parametrize("path", ["/health", "/openapi.json", "/", "/nothing", "/metrics"])
def test_what_has_a_length_keeps_it(client: httpx.Client, path: str) -> None:
    head, body = ask(client, "1.0", path)
    assert "transfer-encoding" not in head
    assert f"content-length: {len(body)}\r\n" in head + "\r\n"


def test_a_whole_answer_is_the_same_in_both(client: httpx.Client) -> None:
    ask_for = {"prompt": "hi", "max_tokens": 4}
    (old, body), (_, other) = (ask(client, v, "/v1/completions", ask_for) for v in ("1.0", "1.1"))
    assert "transfer-encoding" not in old
    assert json.loads(body)["choices"] == json.loads(other)["choices"]


def test_an_expected_100_is_not_sent_to_those_who_do_not_know_it(client: httpx.Client) -> None:
    ask_for = {"prompt": "hi", "max_tokens": 4}
    expects = "expect: 100-continue\r\n"
    head, body = ask(client, "1.0", "/v1/completions", ask_for, expects)
    assert " 200 " in head.partition("\r\n")[0]
    assert json.loads(body)["choices"]
    head, _ = ask(client, "1.1", "/v1/completions", ask_for, expects)
    assert " 100 " in head.partition("\r\n")[0], "HTTP/1.1 has it as before"
