"""What the load tools and clients of the field send, byte for byte in their order: they run unchanged, and measure what is there."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.live import live, scripted, wait_until_free
from tests.gateway.test_bad_input import error_of
from tests.gateway.test_metrics import scrape
from tests.reference.strict_sse import DONE, read_events, text_of

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PARTS = [{"role": "user", "content": [{"type": "text", "text": "a long prompt"}]}]


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with live(scripted([b"a", b"b", b"c"], num_blocks=256)) as client:
        yield client
        wait_until_free(client)


def streamed(client: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    answer = client.post(path, json=body, headers={"authorization": "Bearer EMPTY"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = read_events(answer.content)
    assert events[-1] == DONE
    return events[:-1]


def test_guidellm_probes_then_measures_by_running_usage(client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    model = client.get("/v1/models").json()["data"][0]["id"]
    body = {
        "model": model,
        "messages": PARTS,
        "max_completion_tokens": 32,
        "max_tokens": 32,
        "stop": None,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    events = streamed(client, CHAT, body)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 32
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["prompt_tokens"] > len("a long prompt")
    text = {"model": model, "prompt": "a long prompt", "max_tokens": 32, "ignore_eos": True}
    whole = client.post(COMPLETIONS, json=text).json()
    assert whole["usage"]["completion_tokens"] == 32


def test_aiperf_probes_metrics_by_head_before_and_reads_server_counts(client: httpx.Client) -> None:
    head = client.head("/metrics")
    assert (head.status_code, head.content) == (200, b"")
    get = client.get("/metrics")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert get.headers["content-type"].startswith("text/plain")
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "hi", "name": "user"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 20,
        "min_tokens": 20,
        "ignore_eos": True,
    }
    events = streamed(client, CHAT, body)
    assert events[-1]["usage"]["completion_tokens"] == 20
    assert scrape(client)["kilburn_generation_tokens_total"] == 20


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_vllm_bench_waits_for_one_answer_and_counts_by_the_usage_chunk(
    client: httpx.Client, path: str
) -> None:
    own = (
        {"prompt": "a long prompt", "logprobs": None, "max_tokens": 16}
        if path == COMPLETIONS
        else {"messages": PARTS, "max_completion_tokens": 16}
    )
    body = {
        "model": "scripted",
        **own,
        "temperature": 0.0,
        "repetition_penalty": 1.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    for _ in range(2):  # the probe, then a measured one
        events = streamed(client, path, body)
        assert events[-1]["usage"]["completion_tokens"] == 16
        assert all(event["choices"] for event in events[:-1])


def test_official_client_merges_vendor_fields_at_the_top(client: httpx.Client) -> None:
    url = f"{client.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as official:
        stream = official.chat.completions.create(
            model="scripted",
            messages=PARTS,  # type: ignore[arg-type]
            max_completion_tokens=4,
            n=2,
            stream=True,
            stream_options={"include_usage": True, "include_obfuscation": False},
            user="me",
            store=False,
            metadata={"run": "1"},
            service_tier="auto",
            extra_body={"top_k": 5, "min_p": 0.1, "ignore_eos": True, "repetition_penalty": 1.1},
        )
        chunks = list(stream)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1}


HARMLESS: list[dict[str, Any]] = [
    {"user": "u", "metadata": {"a": "b"}, "service_tier": "flex", "store": True},
    {"safety_identifier": "x", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
    {"request_id": "r-1", "priority": 5, "parallel_tool_calls": True},
    {"skip_special_tokens": True, "spaces_between_special_tokens": True, "detokenize": True},
    {"return_token_ids": False, "include_reasoning": True, "bad_words": [], "tools": []},
    {"guided_json": None, "structured_outputs": None, "kv_transfer_params": None, "x": None},
    {"stream_options": None, "logit_bias": None, "response_format": {"type": "text"}},
]
HARMFUL: list[tuple[str, Any]] = [
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tool_choice", "required"),
    ("response_format", {"type": "json_object"}),
    ("modalities", ["audio"]),
    ("reasoning_effort", "low"),
    ("guided_json", {"type": "object"}),
    ("structured_outputs", {"json": {}}),
    ("logits_processors", ["x"]),
    ("bad_words", ["x"]),
    ("return_token_ids", True),
    ("cache_salt", "s"),
    ("chat_template_kwargs", {"enable_thinking": False}),
    ("chat_template", "{{ x }}"),
    ("add_special_tokens", False),
    ("skip_special_tokens", False),
    ("prompt_logprobs", 1),
    ("truncate_prompt_tokens", 5),
    ("kv_transfer_params", {"a": 1}),
    ("max_new_tokens", 5),
    ("inputs", "hi"),
]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_harmless_fields_are_ignored_and_harmful_ones_refused_by_name(
    client: httpx.Client, path: str
) -> None:
    good: dict[str, Any] = {"prompt": "hi"} if path == COMPLETIONS else {"messages": PARTS}
    said = client.post(path, json=good).json()["choices"]
    for fields in HARMLESS:
        answer = client.post(path, json=good | fields)
        assert answer.status_code == 200, f"{fields}: {answer.text}"
        assert answer.json()["choices"] == said
    for name, value in HARMFUL:
        error = error_of(client.post(path, json=good | {name: value}))
        assert error["param"] == name
        assert error["code"] in ("unsupported_parameter", "unknown_parameter")
    padded = good | {"stream": True, "stream_options": {"include_obfuscation": True}}
    assert error_of(client.post(path, json=padded))["param"] == "stream_options.include_obfuscation"


def test_labels_of_clients_are_echoed_and_are_no_keys(client: httpx.Client) -> None:
    headers = {"x-request-id": "same-label"}
    first = client.post(COMPLETIONS, json={"prompt": "hi"}, headers=headers)
    second = client.post(COMPLETIONS, json={"prompt": "hi"}, headers=headers)
    assert first.headers["x-request-id"] == second.headers["x-request-id"] == "same-label"
    assert first.json()["id"] != second.json()["id"]
    assert text_of(streamed(client, COMPLETIONS, {"prompt": "hi", "stream": True})) == "abc"
