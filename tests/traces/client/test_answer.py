"""Streams cut anywhere read alike, and tokens are where their text is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.client.answer import NEVER, Answer


def stream(*events: object, end: str = "\n") -> bytes:
    texts = [e if isinstance(e, str) else json.dumps(e) for e in events]
    return "".join(f": ping{end}{end}data: {text}{end}{end}" for text in texts).encode()


def text(value, finish=None):
    return {"choices": [{"index": 0, "text": value, "finish_reason": finish}], "usage": None}


def said(value=None, finish=None):
    return {
        "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": value}, "finish_reason": finish}
        ]
    }


USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}


@given(st.lists(st.integers(1, 40), max_size=30), st.sampled_from(["\n", "\r\n"]))
def test_stream_reads_the_same_wherever_it_is_cut(sizes, end):
    data = stream(text("a"), text("b — ü"), text("", "length"), USAGE, "[DONE]", end=end)
    answer, at = Answer(), 0
    for now, size in enumerate([*sizes, len(data)]):
        answer.feed(data[at : at + size], now)
        at += size
    assert answer.num_events == 3
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 3)
    assert answer.finished
    assert answer.complete
    assert answer.failure is None


def test_first_token_is_the_first_text_and_not_the_role():
    answer = Answer()
    answer.feed(stream(said("")), 1)
    assert answer.first_ns == NEVER
    answer.feed(stream(said("a")), 2)
    answer.feed(stream(said("b")), 3)
    answer.feed(stream(said(None, "stop")), 4)
    answer.feed(stream(USAGE, "[DONE]"), 5)
    assert (answer.first_ns, answer.last_ns, answer.num_events) == (2, 4, 3)


def test_thinking_counts_as_tokens():
    answer = Answer()
    answer.feed(stream({"choices": [{"delta": {"reasoning_content": "hm"}}]}), 9)
    assert answer.first_ns == 9


def test_error_event_is_a_failure():
    answer = Answer()
    answer.feed(stream(text("a"), {"error": {"message": "no", "code": 3}}), 1)
    assert answer.failure == "error in the stream"


@pytest.mark.parametrize(
    ("details", "cached"),
    [
        ({"cached_tokens": 4, "audio_tokens": 0}, 4),
        ({"cached_tokens": 0}, 0),
        (None, None),
        ({}, None),
        ({"cached_tokens": None}, None),
        ({"cached_tokens": 8}, None),
        ({"cached_tokens": -1}, None),
        ({"cached_tokens": True}, None),
        ("none", None),
    ],
)
def test_cached_tokens_are_read_where_they_can_be_true_and_spoil_nothing(details, cached):
    answer = Answer()
    answer.feed(stream({"usage": {**USAGE["usage"], "prompt_tokens_details": details}}), 1)
    assert answer.failure is None
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.cached) == (7, cached)
