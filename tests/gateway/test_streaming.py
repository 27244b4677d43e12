"""Streams by the letter: stop strings, split characters, usage, failures (FR-07, FR-08, FR-09, FR-11)."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine.core.errors import ExecutorError
from engine.core.plan import Plan
from tests.engine.gate import Gate
from tests.gateway.live import live, scripted, wait_until, wait_until_free
from tests.reference.strict_sse import DONE, finishes, read_events, text_of

ENDPOINTS = {
    "/v1/completions": {"prompt": "hi", "max_tokens": 40},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40},
}
both = pytest.mark.parametrize("path", ENDPOINTS)


def whole_text(path: str, answer: dict[str, Any]) -> str:
    choice = answer["choices"][0]
    text: str = choice["text"] if path == "/v1/completions" else choice["message"]["content"]
    return text


def counts(usage: dict[str, Any]) -> dict[str, Any]:
    """Token counts without those of the cache, which the first of two requests fills for the second."""
    return {name: count for name, count in usage.items() if name != "prompt_tokens_details"}


def ask_both_ways(client: Any, path: str, **fields: Any) -> tuple[list[Any], dict[str, Any]]:
    """The events of a streamed request and the answer of the same one at once."""
    body = ENDPOINTS[path] | fields
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = client.post(path, json=body | usage)
    at_once = client.post(path, json=body)
    assert streamed.status_code == at_once.status_code == 200, at_once.text
    return read_events(streamed.content), at_once.json()


@both
@pytest.mark.parametrize(
    ("pieces", "text", "num_tokens"),
    [
        ([b"the ", b"lan", b"ter", b"n", b" glows"], "the ", 4),
        ([b"the ", b"lan", b"ter", b"race"], "the lanterrace", 5),
        ([b"the ", b"lan"], "the lan", 3),
    ],
)
def test_stop_string_never_leaks_and_nothing_else_is_lost(
    path: str, pieces: list[bytes], text: str, num_tokens: int
) -> None:
    with live(scripted(pieces)) as client:
        events, answer = ask_both_ways(client, path, stop="lantern")
    assert text_of(events) == whole_text(path, answer) == text
    assert finishes(events) == [answer["choices"][0]["finish_reason"]] == ["stop"]
    assert answer["usage"]["completion_tokens"] == num_tokens
    assert counts(events[-2]["usage"]) == counts(answer["usage"])


@both
def test_characters_split_over_tokens_arrive_whole(path: str) -> None:
    emoji, kanji = "\N{GRINNING FACE}".encode(), "\u6f22".encode()
    pieces = [b"a", emoji[:2], emoji[2:], kanji[:1], kanji[1:], emoji[:1], emoji[1:3], emoji[3:]]
    with live(scripted(pieces)) as client:
        events, answer = ask_both_ways(client, path)
    assert text_of(events) == whole_text(path, answer) == b"".join(pieces).decode()
    assert all(choice.get("text") != "" for e in events[:-3] for choice in e["choices"])


@both
def test_answer_that_ends_within_a_character_is_flushed_once_in_both_modes(path: str) -> None:
    with live(scripted([b"ok ", b"\xf0\x9f", b"\x98", b"\x80"])) as client:
        events, answer = ask_both_ways(client, path, max_tokens=3)
    assert text_of(events) == whole_text(path, answer) == "ok \ufffd"
    assert finishes(events) == ["length"]


def test_detokenizing_says_of_a_cut_character_what_answers_say() -> None:
    with live(scripted()) as client:
        whole = client.post("/tokenize", json={"prompt": "a\U0001f98a"}).json()["tokens"]
        texts = [
            client.post("/detokenize", json={"tokens": whole[:count]}).json()["prompt"]
            for count in range(1, len(whole) + 1)
        ]
    assert texts == ["a", "a\ufffd", "a\ufffd", "a\ufffd", "a\U0001f98a"]


@both
def test_random_bytes_stream_as_they_read_at_once(path: str) -> None:
    with live(scripted()) as client:
        events, answer = ask_both_ways(client, path, max_tokens=200, stop=["\x10", "zz"])
        wait_until_free(client)
    assert text_of(events) == whole_text(path, answer)
    assert counts(events[-2]["usage"]) == counts(answer["usage"])


@both
def test_usage_comes_in_one_chunk_of_its_own_just_before_the_end(path: str) -> None:
    with live(scripted([b"a", b"b"])) as client:
        events, answer = ask_both_ways(client, path)
    *chunks, usage, done = events
    assert done == DONE
    assert usage["choices"] == []
    assert counts(usage["usage"]) == counts(answer["usage"])
    assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + 3
    assert all(len(chunk["choices"]) == 1 and chunk["usage"] is None for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@both
@pytest.mark.parametrize(
    "options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False}}]
)
def test_no_usage_unless_asked_for(path: str, options: dict[str, Any]) -> None:
    with live(scripted([b"a", b"b"])) as client:
        response = client.post(path, json=ENDPOINTS[path] | {"stream": True} | options)
    events = read_events(response.content)
    assert events[-1] == DONE
    assert all(len(e["choices"]) == 1 and "usage" not in e for e in events[:-1])


@both
def test_running_usage_counts_up_in_every_chunk(path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    with live(scripted([b"a", b"b", b"c"])) as client:
        body = ENDPOINTS[path] | {"stream": True, "stream_options": options}
        events = read_events(client.post(path, json=body).content)
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == 4


def test_first_chat_chunk_names_the_role_and_chunks_share_one_id() -> None:
    path = "/v1/chat/completions"
    with live(scripted([b"a"])) as client:
        events = read_events(client.post(path, json=ENDPOINTS[path] | {"stream": True}).content)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in e["choices"][0]["delta"] for e in events[1:-1])
    assert len({event["id"] for event in events[:-1]}) == 1


@both
def test_stream_headers_keep_proxies_from_buffering(path: str) -> None:
    with live(scripted([b"a"])) as client:
        headers = client.post(path, json=ENDPOINTS[path] | {"stream": True}).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"


def fail_at(step: int) -> Any:
    def fault(plan: Plan) -> Exception | None:
        return ExecutorError("the device is gone") if plan.step == step else None

    return fault


@both
@pytest.mark.parametrize("stream", [True, False])
def test_failure_before_the_first_token_is_an_http_status(path: str, stream: bool) -> None:
    with live(scripted([b"a"], step_fault=fail_at(0))) as client:
        response = client.post(path, json=ENDPOINTS[path] | {"stream": stream})
        wait_until_free(client)
        after = client.post(path, json=ENDPOINTS[path])
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert response.json()["error"]["code"] == "executor_failed"
    assert after.status_code == 200


@both
def test_failure_after_the_first_token_is_an_event_and_no_done_follows(path: str) -> None:
    def fault(request: int, position: int) -> str | None:
        return "the logits are not numbers" if position == position_of_failure else None

    num_prompt = 2 if path == "/v1/completions" else len("<user\nhi><assistant\n")
    position_of_failure = num_prompt + 5
    with live(scripted([b"a"] * 9, row_fault=fault)) as client:
        body = ENDPOINTS[path] | {"stream": True, "stream_options": {"include_usage": True}}
        response = client.post(path, json=body)
        wait_until_free(client)
    events = read_events(response.content)
    assert response.status_code == 200
    assert text_of(events) == "aaaaa"
    assert finishes(events) == []
    assert events[-1]["error"] == {
        "message": "the logits are not numbers",
        "type": "server_error",
        "param": None,
        "code": "executor_failed",
    }


@both
def test_failure_after_some_tokens_of_an_answer_at_once_is_an_http_status(path: str) -> None:
    def fault(request: int, position: int) -> str | None:
        return "the logits are not numbers" if position == 25 else None

    with live(scripted([b"a"] * 39, row_fault=fault)) as client:
        response = client.post(path, json=ENDPOINTS[path])
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "the logits are not numbers"


def test_request_that_fails_leaves_the_others_of_its_batch_alone() -> None:
    gate = Gate()

    def fault(request: int, position: int) -> str | None:
        return "the logits are bad" if request == 0 and position == 8 else None

    body = ENDPOINTS["/v1/completions"] | {"stream": True}
    with live(scripted([b"a"] * 20, row_fault=fault, pace=gate)) as client:
        with ThreadPoolExecutor(2) as threads:
            failing = threads.submit(client.post, "/v1/completions", json=body)
            wait_until(client, running=1)
            going_on = threads.submit(client.post, "/v1/completions", json=body)
            wait_until(client, running=1, waiting=1)
            gate.open()
            failed, complete = (
                read_events(failing.result().content),
                read_events(going_on.result().content),
            )
        wait_until_free(client)
    assert failed[-1]["error"]["message"] == "the logits are bad"
    assert text_of(failed) == "a" * 6
    assert text_of(complete) == "a" * 20
    assert complete[-1] == DONE
