"""Whatever is sent to whatever endpoint: no failure of ours, no hang, and an error in OpenAI's shape that names the field."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.fields import OFF
from gateway.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from tests.gateway.live import live, scripted, wait_until_free

USER = {"role": "user", "content": "hi"}
GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [USER], "max_tokens": 1},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [5]},
}
KINDS = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
PATHS = [*GOOD, "/v1/requests/x/cancel", "/nothing"]
DEEP = 100_000

NOT_JSON = {
    "empty": b"",
    "blank": b" \n\t ",
    "truncated": b'{"prompt": "h',
    "half a number": b'{"max_tokens": 1e',
    "trailing comma": b'{"prompt": "hi",}',
    "two values": b'{"prompt": "hi"} {}',
    "single quotes": b"{'prompt': 'hi'}",
    "comment": b'{"prompt": "hi" /* x */}',
    "bare word": b"nonsense",
    "form": b"prompt=hi&max_tokens=5",
    "NaN": b'{"temperature": NaN}',
    "infinity": b'{"temperature": -Infinity}',
    "leading zero": b'{"max_tokens": 01}',
    "hexadecimal": b'{"max_tokens": 0x10}',
    "byte order mark": b'\xef\xbb\xbf{"prompt": "hi"}',
    "UTF-16": '{"prompt": "hi"}'.encode("utf-16"),
    "UTF-32": '{"prompt": "hi"}'.encode("utf-32"),
    "bad UTF-8 in an ignored field": b'{"prompt": "hi", "user": "\xff"}',
    "bad UTF-8": b'{"prompt": "\xff\xfe"}',
    "bad UTF-8 in a name": b'{"\xc3\x28": 1, "prompt": "hi"}',
    "overlong UTF-8": b'{"prompt": "\xc0\xaf"}',
    "surrogate in UTF-8": b'{"prompt": "\xed\xa0\x80"}',
    "lone high surrogate": b'{"prompt": "\\ud800"}',
    "lone low surrogate": b'{"prompt": "\\udc00"}',
    "surrogates in the wrong order": b'{"prompt": "\\udc00\\ud800"}',
    "half an escape": b'{"prompt": "\\u12"}',
    "raw control character": b'{"prompt": "a\nb"}',
    "raw null byte": b'{"prompt": "a\x00b"}',
    "null bytes": b"\x00" * 100,
    "gzip": bytes.fromhex("1f8b0800000000000003ab562a28caccd0560200c2b1c5c70b000000"),
    "open lists": b'{"prompt": ' + b"[" * DEEP,
    "open objects": b'{"a":' * DEEP,
    "deep lists": b'{"unknown": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep objects": b'{"messages": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "deep in a known field": b'{"stop": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep in an ignored field": b'{"prompt": "hi", "metadata": ' + b"[" * DEEP + b"]" * DEEP + b"}",
}
NO_OBJECT = [b"[]", b"null", b"7", b'"x"', b"true", b"[{}]", b'[["prompt", "hi"]]', b"1e400"]
WRONG: list[Any] = [
    None, True, 0, -1, 1.5, -1e308, 2**63, -(2**63) - 1, 10**400,
    "", "x", "\x00", "\U0010ffff", "<|end|>", "x" * 5000,
    [], [[]], [None], [True], [1.5], [10**30], ["x", 1], [{}], [[[]]], [0] * 3000, ["a"] * 300,
    {}, {"": 1}, {"x": None}, {"1": 1e308}, {"1": {}}, {"type": ["text"]}, {"include_usage": 1},
]  # fmt: skip
WRONG_MESSAGES: list[Any] = [
    *WRONG,
    [USER, None],
    [{"role": None, "content": "x"}],
    [{"role": "user"}],
    [{"role": "user", "content": [{"type": "text", "text": 7}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
    [{"role": "user", "content": [{"type": "text", "text": None}]}],
    [{"role": "user", "content": "hi", "name": 7}],
    [{"role": "tool", "content": "hi"}],
    [{"role": "user", "content": "hi", "tool_calls": [{}]}],
]  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with live(scripted([b"a", b"b"], num_blocks=256)) as client:
        yield client
        wait_until_free(client)


def checked(response: httpx.Response) -> dict[str, Any]:
    """The error, in the one shape that clients parse."""
    assert 400 <= response.status_code < 500, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert isinstance(error["code"], str)
    assert 0 < len(error["message"]) < 600
    return error


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("what", NOT_JSON)
def test_what_is_no_json_is_said_to_be_none(client: httpx.Client, path: str, what: str) -> None:
    assert checked(client.post(path, content=NOT_JSON[what]))["code"] == "invalid_json"


@pytest.mark.parametrize("path", GOOD)
def test_what_is_no_object_is_said_to_be_none(client: httpx.Client, path: str) -> None:
    for body in NO_OBJECT:
        error = checked(client.post(path, content=body))
        assert "the body: " in error["message"]


@pytest.mark.parametrize("path", GOOD)
def test_wrong_values_are_refused_by_the_name_of_their_field(
    client: httpx.Client, path: str
) -> None:
    refused = 0
    names = [*KINDS[path].__struct_fields__, "nobody_knows"]
    if path == "/v1/chat/completions":  # the others are read as those of completions are
        names = [name for name in names if name not in CompletionRequest.__struct_fields__]
    if path == "/tokenize":
        names += OFF
    for name in names:
        for value in WRONG_MESSAGES if name == "messages" else WRONG:
            content = json.dumps(GOOD[path] | {name: value}).encode()
            response = client.post(path, content=content)
            if response.status_code == 200:
                continue
            refused += 1
            error = checked(response)
            asked = f"{path} {name}={str(value)[:50]}: {error}"
            if error["code"] == "invalid_json":  # a number that no float can hold
                assert value == 10**400, asked
                continue
            assert error["param"] is not None, asked
            assert error["param"].split("[")[0].split(".")[0] == name or {name, error["param"]} in (
                {"max_tokens", "max_completion_tokens"},  # named by what they contradict
                {"min_tokens", "max_tokens"},
                {"best_of", "n"},
                {"prompt", "messages"},
            ), asked
            assert error["param"] in error["message"], asked
    assert refused > 70


@pytest.mark.parametrize("path", GOOD)
def test_of_a_name_that_stands_twice_the_last_counts(client: httpx.Client, path: str) -> None:
    good = json.dumps(GOOD[path])
    assert (
        client.post(path, content=f'{{"model": "other", {good[1:-1]}, "model": null}}').status_code
        == 200
    )
    error = checked(client.post(path, content=f'{good[:-1]}, "model": null, "model": 7}}'))
    assert error["param"] == "model"
    hidden = f'{{"tools": null, {good[1:-1]}, "tools": [{{}}], "tools": [1]}}'
    assert checked(client.post(path, content=hidden))["param"] == "tools"


@pytest.mark.parametrize("path", GOOD)
def test_missing_fields_are_named(client: httpx.Client, path: str) -> None:
    error = checked(client.post(path, content=b"{}"))
    assert error["param"] == next(iter(GOOD[path]))


JSON_NAMES = ["application/json", "Application/JSON ; charset=utf-8", "application/vnd.api+json"]
UNDECLARED = [None, "", "application/x-www-form-urlencoded"]
OTHERS = ["text/plain", "text/plain;application/json", "application/xml", "multipart/form-data"]
BROWSER = {"origin": "https://elsewhere.example"}


def post_as(
    client: httpx.Client, path: str, kind: str | None, also: dict[str, str]
) -> httpx.Response:
    headers = {} if kind is None else {"content-type": kind.encode("latin-1")}
    content = json.dumps(GOOD[path])
    return client.post(path, content=content, headers=headers | also)  # type: ignore[operator]


@pytest.mark.parametrize("path", GOOD)
def test_json_may_be_declared_or_left_out(client: httpx.Client, path: str) -> None:
    for kind in [*JSON_NAMES, *UNDECLARED]:
        assert post_as(client, path, kind, {}).status_code == 200, kind
    for kind in JSON_NAMES:
        assert post_as(client, path, kind, BROWSER).status_code == 200, kind


@pytest.mark.parametrize("path", GOOD)
def test_what_calls_itself_something_else_is_refused(client: httpx.Client, path: str) -> None:
    refused = [(kind, {}) for kind in [*OTHERS, "\xff", "x" * 5000]]
    refused += [(kind, BROWSER) for kind in [*OTHERS, *UNDECLARED]]  # what needs no preflight
    for kind, also in refused:
        response = post_as(client, path, kind, also)
        assert response.status_code == 415, (kind, also)
        error = response.json()["error"]
        assert (error["type"], error["param"], error["code"]) == (
            "invalid_request_error",
            None,
            "unsupported_media_type",
        )
        assert "`content-type: application/json`" in error["message"]
        assert len(error["message"]) < 400


def raw(client: httpx.Client, request: bytes) -> tuple[int, bytes]:
    """Status and body of a connection that the server closes."""
    address = (client.base_url.host, client.base_url.port)
    with socket.create_connection(address, 10) as connection:
        connection.sendall(request)
        said = b""
        while more := connection.recv(65536):
            said += more
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body


END = b"\r\nhost: x\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"NONSENSE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /v1/models HTTP/9.9" + END,
        b"CONNECT x:1 HTTP/1.1" + END,
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1" + END,
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6" + END + b"{}   ",
        b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked" + END + b"zz\r\n",
        b"GET /%ff%00%0a HTTP/1.1" + END,
        b"GET //evil.example/%2e%2e HTTP/1.1" + END,
        b"GET /v1/models/%00 HTTP/1.1" + END,
        b"GET /v1/models/%ff%ed%a0%80 HTTP/1.1" + END,
        b"POST /v1/requests/%2e%2e%0d%0ax:y/cancel HTTP/1.1" + END,
        b"POST /v1/requests/" + b"x" * 20_000 + b"/cancel HTTP/1.1" + END,
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1" + END,
        b"OPTIONS * HTTP/1.1" + END,
        b"PROPFIND /v1/models HTTP/1.1" + END,
        b"GET /nothing HTTP/1.1\r\nhost: [::1\r\nconnection: close\r\n\r\n",
        b"GET /nothing/ HTTP/1.1\r\nhost: \xff\xfe\r\nconnection: close\r\n\r\n",
        b"GET /nothing HTTP/1.1\r\nx-request-id: \xff\r\ncookie: \xff" + END,
    ],
)
def test_broken_http_has_the_same_shape(client: httpx.Client, request_bytes: bytes) -> None:
    status, body = raw(client, request_bytes)
    assert 400 <= status < 500
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert len(error["message"]) < 400


def test_bytes_after_a_request_do_not_reach_into_its_answer(client: httpx.Client) -> None:
    body = json.dumps({"prompt": "hi", "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    address = (client.base_url.host, client.base_url.port)
    with socket.create_connection(address, 10) as connection:
        connection.sendall(head + body + b"NONSENSE\r\n\r\n")
        said = b""
        while more := connection.recv(65536):
            said += more
    assert said.count(b"HTTP/1.1 ") <= 1
