"""Several choices, several prompts, log-probabilities and the rest of the fields, streamed and whole (FR-09 with n > 1)."""

from typing import Any

import httpx
import pytest

from tests.gateway.live import live, scripted, wait_until_free
from tests.reference.scripted import scripted_answer
from tests.reference.strict_sse import DONE, read_events

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
BODIES: dict[str, dict[str, Any]] = {
    TEXT: {"prompt": "hi", "max_tokens": 12, "ignore_eos": True},
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "ignore_eos": True},
}
both = pytest.mark.parametrize("path", BODIES)


def joined(events: list[Any], index: int) -> str:
    """Text of one choice of a stream."""
    text = ""
    for choice in (c for e in events if e is not DONE for c in e["choices"] if c["index"] == index):
        text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return text


def texts(answer: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [c["text"] if "text" in c else c["message"]["content"] for c in answer["choices"]]


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@both
@pytest.mark.parametrize("n", [1, 3])
def test_stream_of_n_choices_has_n_ends_then_usage_then_done(path: str, n: int) -> None:
    body = BODIES[path] | {"n": n}
    with live(scripted()) as client:
        answer = post(client, path, body)
        events = read_events(client.post(path, json=body | USAGE).content)
        plain = read_events(client.post(path, json=body | {"stream": True}).content)
        wait_until_free(client)
    *chunks, usage, done = events
    assert done == DONE
    assert usage["choices"] == []
    ends = [e["choices"][0]["index"] for e in chunks if e["choices"][0]["finish_reason"]]
    assert sorted(ends) == list(range(n))
    assert all(len(e["choices"]) == 1 and e["usage"] is None for e in chunks)
    assert all(len(e["choices"]) == 1 and "usage" not in e for e in plain[:-1])
    assert usage["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"] == 12 * n
    assert [joined(chunks, i) for i in range(n)] == texts(answer)
    assert len(set(texts(answer))) == n
    if path == CHAT:
        firsts = {e["choices"][0]["index"]: e for e in reversed(chunks)}
        assert all(e["choices"][0]["delta"]["role"] == "assistant" for e in firsts.values())


@pytest.mark.parametrize("n", [1, 2])
def test_batch_of_prompts_is_answered_in_its_order(n: int) -> None:
    prompts = ["one", "two, which is longer", "three"]
    served = scripted()
    body = {"prompt": prompts, "max_tokens": 8, "n": n, "ignore_eos": True}
    with live(served) as client:
        answer = post(client, TEXT, body)
        events = read_events(client.post(TEXT, json=body | USAGE).content)
        wait_until_free(client)
    codec = served.codec
    expected = [
        codec.decode(scripted_answer(codec.encode(prompt), 8, codec.vocab_size, i))
        for prompt in prompts
        for i in range(n)
    ]
    assert texts(answer) == expected
    assert [joined(events, i) for i in range(len(expected))] == expected
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert events[-2]["usage"]["completion_tokens"] == 8 * n * len(prompts)


def test_batch_with_one_prompt_that_cannot_run_is_refused_as_a_whole() -> None:
    with live(scripted(num_blocks=16)) as client:
        body = {"prompt": ["ok", "x" * 62], "max_tokens": 8}
        refused = client.post(TEXT, json=body)
        wait_until_free(client)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] in ("prompt[1]", "max_tokens")


def test_client_that_leaves_a_batch_takes_all_of_it_along() -> None:
    body = {
        "prompt": ["a", "b", "c"],
        "max_tokens": 300,
        "n": 2,
        "ignore_eos": True,
        "stream": True,
    }
    with live(scripted(num_blocks=1024)) as client:
        with client.stream("POST", TEXT, json=body) as response:
            next(response.iter_bytes())
        wait_until_free(client)


@pytest.mark.parametrize("stream", [False, True])
def test_failure_of_one_choice_fails_the_answer_and_frees_the_rest(stream: bool) -> None:
    def fault(request: int, position: int) -> str | None:
        return "the output was not finite" if request == 1 and position == 20 else None

    body = {"prompt": ["a", "b"], "max_tokens": 100, "ignore_eos": True, "stream": stream}
    with live(scripted(row_fault=fault)) as client:
        response = client.post(TEXT, json=body)
        wait_until_free(client)
    if stream:
        events = read_events(response.content)
        assert events[-1]["error"]["code"] == "executor_failed"
        assert DONE not in events
    else:
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "the output was not finite"


def test_echo_puts_the_prompt_before_every_choice() -> None:
    body = BODIES[TEXT] | {"prompt": ["ab", "cd"], "n": 2}
    with live(scripted()) as client:
        plain, echoed = post(client, TEXT, body), post(client, TEXT, body | {"echo": True})
        events = read_events(client.post(TEXT, json=body | {"echo": True, "stream": True}).content)
    wanted = [p + text for p, text in zip(["ab", "ab", "cd", "cd"], texts(plain), strict=True)]
    assert texts(echoed) == wanted
    assert [joined(events, i) for i in range(4)] == wanted


def test_best_of_delivers_the_most_probable_first() -> None:
    served = scripted()
    body = BODIES[TEXT] | {"n": 2, "best_of": 6, "logprobs": 0}
    with live(served) as client:
        answer = post(client, TEXT, body)
        bare = post(client, TEXT, {k: v for k, v in body.items() if k != "logprobs"})
    codec = served.codec
    every = [scripted_answer(codec.encode("hi"), 12, codec.vocab_size, i) for i in range(6)]
    every.sort(key=sum)  # in a script, small ids are the probable ones
    assert texts(answer) == texts(bare) == [codec.decode(tokens) for tokens in every[:2]]
    assert answer["usage"]["completion_tokens"] == 72
    assert all(choice["logprobs"] is None for choice in bare["choices"])


def test_log_probabilities_of_a_text_line_up_with_its_tokens() -> None:
    pieces = [b"the ", b"drum"]
    with live(scripted(pieces)) as client:
        body = {"prompt": "hi", "logprobs": 2}
        (choice,) = post(client, TEXT, body)["choices"]
        events = read_events(client.post(TEXT, json=body | {"stream": True}).content)
    said = choice["logprobs"]
    assert said["tokens"] == ["the ", "drum", ""]
    assert said["text_offset"] == [0, 4, 8]
    assert said["token_logprobs"][0] < 0
    assert [len(top) for top in said["top_logprobs"]] == [1, 1, 1]  # both are control tokens, ""
    streamed = [e["choices"][0]["logprobs"] for e in events[:-1]]
    for name in said:
        assert [each for part in streamed for each in part[name]] == said[name]


def test_log_probabilities_of_a_chat_have_bytes_and_alternatives() -> None:
    with live(scripted(["\u00fc".encode()[:1], "\u00fc".encode()[1:]])) as client:
        body = BODIES[CHAT] | {"logprobs": True, "top_logprobs": 4, "ignore_eos": False}
        (choice,) = post(client, CHAT, body)["choices"]
        events = read_events(client.post(CHAT, json=body | {"stream": True}).content)
    content = choice["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xBC], []]
    assert content[0]["token"] == "\ufffd"
    assert [len(entry["top_logprobs"]) for entry in content] == [4, 4, 4]
    assert content[0]["top_logprobs"][3] == {"token": "\x00", "logprob": -3 / 261, "bytes": [0]}
    parts = [e["choices"][0]["logprobs"] for e in events[:-1]]
    assert [each for part in parts if part for each in part["content"]] == content


def test_least_tokens_stop_tokens_and_included_stop_strings() -> None:
    pieces = [b"one ", b"two ", b"three ", b"four "]
    first = 259
    with live(scripted(pieces)) as client:

        def said(**fields: Any) -> tuple[str, int]:
            answer = post(client, TEXT, {"prompt": "hi"} | fields)
            assert answer["choices"][0]["finish_reason"] == "stop"
            return texts(answer)[0], answer["usage"]["completion_tokens"]

        assert said(stop_token_ids=[first + 2]) == ("one two ", 3)
        assert said(stop_token_ids=[first + 2], min_tokens=3) == ("one two three four ", 5)
        assert said(stop=["two"]) == ("one ", 2)
        assert said(stop=["two"], include_stop_str_in_output=True) == ("one two", 2)
        assert said(stop=["two", "four"], min_tokens=2) == ("one two three ", 4)


def test_cached_tokens_are_told() -> None:
    body = {"prompt": "x" * 41, "max_tokens": 2}
    with live(scripted()) as client:
        first, second = post(client, TEXT, body)["usage"], post(client, TEXT, body)["usage"]
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["prompt_tokens_details"] == {"cached_tokens": 40}


def test_tokenize_and_detokenize_are_each_others_inverse() -> None:
    served = scripted()
    with live(served) as client:
        text = client.post("/tokenize", json={"prompt": "h\u00fc <|end|>"}).json()
        messages = BODIES[CHAT]["messages"]
        chat = client.post("/tokenize", json={"messages": messages}).json()
        back = client.post("/detokenize", json={"tokens": text["tokens"]}).json()
        bad = client.post("/detokenize", json={"tokens": [1, 10**6]})
        neither = client.post("/tokenize", json={})
    assert text == {
        "count": len(text["tokens"]),
        "max_model_len": 512,
        "tokens": served.codec.encode("h\u00fc <|end|>").tolist(),
    }
    assert chat["tokens"] == served.chat.encode(messages).tolist()
    assert back == {"prompt": "h\u00fc "}
    assert bad.json()["error"]["param"] == "tokens[1]"
    assert neither.json()["error"]["param"] == "prompt"
