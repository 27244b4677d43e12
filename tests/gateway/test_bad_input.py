"""Bad requests: one clear sentence that names the field, the right status, OpenAI's shape, and a server that goes on."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.live import live, scripted, wait_until_free

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with live(scripted([b"a", b"b"], num_blocks=64, max_context=128), max_body_bytes=100_000) as c:
        yield c
        wait_until_free(c)


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error, after checking the shape that clients parse."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.json().keys() == {"error"}
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert isinstance(error["message"], str)
    assert isinstance(error["code"], str)
    assert "\n" not in error["message"]
    if error["param"] is not None:
        assert error["param"] in error["message"]
    return error


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": [""]}, "prompt[0]", "empty"),
        ({"prompt": ["a", []]}, "prompt[1]", "empty"),
        ({"prompt": None}, "prompt", "expected"),
        ({"prompt": 7}, "prompt", "expected"),
        ({"prompt": [1, True]}, "prompt[1]", "expected"),
        ({"prompt": [1, "x"]}, "prompt", "mixes"),
        ({"prompt": ["a"] * 129}, "prompt", "at most 128"),
        ({"prompt": ["a", "b"], "n": 65}, "n", "at most 128"),
        ({"prompt": ["a", "x" * 128]}, "prompt[1]", "context is 128"),
        ({"prompt": [3, 9999]}, "prompt[1]", "0 to 260"),
        ({"prompt": [[3, -1]]}, "prompt[0][1]", "0 to 260"),
        ({"prompt": [3, 10**30]}, "prompt[1]", "0 to 260"),
        ({"prompt": "x" * 128}, "prompt", "context is 128"),
        ({"prompt": "x" * 60_000}, "prompt", "context is 128"),
        ({"prompt": [3] * 128}, "prompt", "context is 128"),
        ({"prompt": ["x" * 128]}, "prompt[0]", "context is 128"),
        ({"max_tokens": 0}, "max_tokens", ">= 1"),
        ({"max_tokens": -1}, "max_tokens", ">= 1"),
        ({"max_tokens": "many"}, "max_tokens", "expected"),
        ({"max_tokens": 1.5}, "max_tokens", "expected"),
        ({"max_tokens": True}, "max_tokens", "expected"),
        ({"max_tokens": 127}, "max_tokens", "at most 126"),
        ({"max_tokens": 10**30}, "max_tokens", "at most 126"),
        ({"temperature": -0.1}, "temperature", ">= 0"),
        ({"temperature": 2.1}, "temperature", "<= 2"),
        ({"temperature": "hot"}, "temperature", "expected"),
        ({"top_p": 1.5}, "top_p", "<= 1"),
        ({"top_k": -2}, "top_k", ">= -1"),
        ({"top_k": 2**31}, "top_k", "<= 2147483647"),
        ({"seed": 2**63}, "seed", "<="),
        ({"seed": "x"}, "seed", "expected"),
        ({"stop": ""}, "stop", "1 to 256"),
        ({"stop": ["a", ""]}, "stop[1]", "1 to 256"),
        ({"stop": ["a", 1]}, "stop[1]", "expected"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": "a" * 257}, "stop", "1 to 256"),
        ({"stream": "yes"}, "stream", "expected"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "`stream` to be true"),
        ({"stream": True, "stream_options": []}, "stream_options", "expected"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "no field"),
        ({"ignore_eos": 1}, "ignore_eos", "expected"),
        ({"model": 7}, "model", "expected"),
        ({"n": 0}, "n", ">= 1"),
        ({"n": True}, "n", "expected"),
        ({"n": 3, "best_of": 2}, "best_of", "at least as many"),
        ({"best_of": 3, "stream": True}, "best_of", "cannot be streamed"),
        (
            {"prompt": ["a"] * 3, "use_beam_search": True, "beam_width": 64},
            "beam_width",
            "192 sequences in all; at most 128",
        ),
        ({"echo": True, "logprobs": 1}, "echo", "not supported"),
        ({"logprobs": 21}, "logprobs", "<= 20"),
        ({"logprobs": True}, "logprobs", "expected"),
        ({"min_p": 1.1}, "min_p", "<= 1"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "more than `max_tokens`"),
        ({"repetition_penalty": 0}, "repetition_penalty", ">= 0.01"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty", ">= 0.01"),
        ({"presence_penalty": 2.5}, "presence_penalty", "<= 2"),
        ({"frequency_penalty": -3}, "frequency_penalty", ">= -2"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "<= 100"),
        ({"logit_bias": {"9999": 1}}, "logit_bias", "0 to 260"),
        ({"logit_bias": {"dog": 1}}, "logit_bias", "0 to 260"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "at most 1024"),
        ({"stop_token_ids": [9999]}, "stop_token_ids[0]", "0 to 260"),
        ({"stop_token_ids": [1] * 17}, "stop_token_ids", "at most 16"),
        ({"suffix": "end"}, "suffix", "not supported"),
        ({"max_token": 5}, "max_token", "no field"),
    ],
)
def test_bad_completion_field_is_named(
    client: httpx.Client, fields: dict[str, Any], param: str, says: str
) -> None:
    error = error_of(client.post(COMPLETIONS, json={"prompt": "hi"} | fields))
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"messages": []}, "messages", "empty"),
        ({"messages": None}, "messages", "expected"),
        ({"messages": "hi"}, "messages", "expected"),
        ({"messages": [7]}, "messages[0]", "expected"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role", "missing"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].role", "one of"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content", "expected"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "`text` only",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "missing",
        ),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]}]},
            "messages[0].tool_calls",
            "not supported",
        ),
        ({"messages": [{"role": "user", "content": "x" * 128}]}, "messages", "context is 128"),
        ({"max_completion_tokens": 120}, "max_completion_tokens", "at most 108"),
        ({"max_tokens": 120}, "max_tokens", "at most 108"),
        ({"max_completion_tokens": 5, "max_tokens": 6}, "max_completion_tokens", "differ"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported"),
        ({"tool_choice": "required"}, "tool_choice", "not supported"),
        ({"functions": [{}]}, "functions", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"modalities": ["text", "audio"]}, "modalities", "not supported"),
        ({"logprobs": 5}, "logprobs", "expected"),
        ({"top_logprobs": 2}, "top_logprobs", "needs `logprobs`"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "<= 20"),
        ({"n": 129}, "n", "<= 128"),
        ({"best_of": 2}, "best_of", "not supported"),
        ({"echo": True}, "echo", "not supported"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "not supported"),
        ({"prompt": "hi"}, "prompt", "no field"),
    ],
)
def test_bad_chat_field_is_named(
    client: httpx.Client, fields: dict[str, Any], param: str, says: str
) -> None:
    error = error_of(client.post(CHAT, json={"messages": [USER]} | fields))
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("model", ["gpt-4", "", "x" * 10_000, "scripted/2"])
def test_unknown_model_is_404_and_says_what_is_served(
    client: httpx.Client, path: str, model: str
) -> None:
    body = {"model": model} | ({"prompt": "hi"} if path == COMPLETIONS else {"messages": [USER]})
    error = error_of(client.post(path, json=body), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "`scripted`" in error["message"]
    assert len(error["message"]) < 400


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"prompt": "hi",}',
        b'{"prompt": "hi"} x',
        b'{"model": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"\xff": 1}',
        b'{"temperature": NaN}',
        b"\xef\xbb\xbf{}",
        '{"prompt": "hi"}'.encode("utf-16"),
        b'{"prompt": ' + b"[" * 5000,
        b'{"unknown": ' + b"[" * 20000 + b"]" * 20000 + b"}",
        b"prompt=hi&max_tokens=5",
    ],
)
def test_malformed_json_is_said(client: httpx.Client, path: str, body: bytes) -> None:
    error = error_of(client.post(path, content=body))
    assert error["code"] == "invalid_json"
    assert "JSON" in error["message"] or "nested" in error["message"]


@pytest.mark.parametrize("body", [b"[]", b"null", b"7", b'"x"'])
def test_body_that_is_no_object_is_said(client: httpx.Client, body: bytes) -> None:
    assert "expected `object`" in error_of(client.post(COMPLETIONS, content=body))["message"]


def test_body_over_the_limit_is_refused(client: httpx.Client) -> None:
    error = error_of(client.post(COMPLETIONS, content=b'{"prompt": "' + b"x" * 200_000), 413)
    assert error["code"] == "body_too_large"


def test_unknown_path_and_method_have_the_same_shape(client: httpx.Client) -> None:
    assert error_of(client.get("/v2/completions"), 404)["code"] == "not_found"
    for elsewhere in ("/version/", "/metrics/"):  # no redirect to where the Host header says
        assert error_of(client.get(elsewhere), 404)["code"] == "not_found"
    assert error_of(client.get("/v1/models/other"), 404)["code"] == "model_not_found"
    wrong = client.get(COMPLETIONS)
    assert error_of(wrong, 405)["code"] == "method_not_allowed"
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"n": 1, "best_of": 1, "echo": False, "logprobs": None, "logit_bias": {}, "suffix": None},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"stop": None, "seed": None, "temperature": None, "top_p": None, "max_tokens": None},
        {"stop": [], "top_k": -1, "top_p": 0, "seed": -1, "stream": None, "stream_options": None},
        {"min_p": 0, "min_tokens": 0, "stop_token_ids": [], "skip_special_tokens": True},
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_fields_that_ask_for_nothing_are_taken(
    client: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    body = {"prompt": "hi"} if path == COMPLETIONS else {"messages": [USER]}
    assert client.post(path, json=body | fields).status_code == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    [
        *("prompt", "messages", "model", "max_tokens", "temperature", "top_p", "top_k", "seed"),
        *("stop", "stream_options", "n", "tools", "logit_bias", "role", "ignore_eos"),
    ]
)


@given(
    fields=st.dictionaries(FIELDS, JSON, max_size=4),
    message=st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls"]), JSON),
    path=st.sampled_from([COMPLETIONS, CHAT]),
)
def test_no_body_makes_the_server_fail(
    client: httpx.Client, fields: dict[str, Any], message: dict[str, Any], path: str
) -> None:
    body = {"prompt": "hi"} if path == COMPLETIONS else {"messages": [USER, message]}
    try:
        content = json.dumps(body | fields).encode()
    except UnicodeEncodeError:
        return
    response = client.post(path, content=content)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error_of(response, response.status_code)
