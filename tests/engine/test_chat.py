"""Chats to prompts: the template's words, errors by name, and no way to smuggle in a control token."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.chat import ChatTemplate
from engine.core.errors import RequestError, WeightsError
from engine.tokenizer import Codec
from engine.weights.load import load_model
from tests.gateway.vocabulary import END, START, TEMPLATE, byte_codec

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "tokenizer" / "smollm2.json"


def template(source: str | None) -> ChatTemplate:
    return ChatTemplate(byte_codec(), source)


def prompt_of(source: str, content: str = "hi") -> str:
    return template(source).render([{"role": "user", "content": content}], escape="\uf8ff")


@pytest.mark.model
def test_default_model_writes_chats_as_transformers_does() -> None:
    data = load_model(None).tokenizer
    chat = ChatTemplate(Codec(data), data.chat_template)
    for messages, prompt, ids in json.loads(GOLDEN.read_text())["chats"]:
        assert chat.render(messages, escape="\uf8ff") == prompt
        assert chat.encode(messages).tolist() == ids


def test_messages_are_written_in_order_and_the_assistants_turn_is_opened() -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    codec = byte_codec()
    ids = ChatTemplate(codec, TEMPLATE).encode(messages)
    assert codec.decode(ids) == "system\nbe briefuser\nhiassistant\n"
    assert [int(i) for i in ids if i in (START, END)] == [START, END, START, END, START]


WORDS = st.sampled_from([*"<|>starendp", "<|start|>", "<|end|>", "\U000f0000"])


@given(text=st.lists(WORDS, max_size=20).map("".join))
def test_no_text_of_a_user_becomes_a_control_token(text: str) -> None:
    codec = byte_codec()
    chat = ChatTemplate(codec, TEMPLATE)
    ids = chat.encode([{"role": "user", "content": text, "name": text}])
    assert [int(i) for i in ids if i in (START, END)] == [START, END, START]
    assert codec.decode(ids) == f"user\n{text}assistant\n"


def test_templates_get_the_helpers_they_are_written_for() -> None:
    assert prompt_of("{{ bos_token }}|{{ eos_token }}") == "<|start|>|<|end|>"
    assert prompt_of("{{ {'a': 'é'} | tojson }}") == '{"a": "é"}'
    assert prompt_of("{% for m in messages %}{% break %}{% endfor %}x") == "x"
    assert prompt_of("  {% if true %}\na\n  {% endif %}\n") == "a\n"


def test_refusal_of_a_template_reaches_the_client() -> None:
    with pytest.raises(
        RequestError, match="refuses these messages: roles must alternate"
    ) as raised:
        prompt_of("{{ raise_exception('roles must alternate') }}")
    assert raised.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[5].content.x }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content.missing() }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{% include 'x' %}",
        "{{ 'x' | tojson(indent='y') }}{{ 'x' | nosuch }}",
    ],
)
def test_template_that_fails_is_a_request_error_and_never_ours(source: str) -> None:
    try:
        chat = template(source)
    except WeightsError:
        return
    with pytest.raises(RequestError) as raised:
        chat.encode([{"role": "user", "content": "hi"}])
    assert raised.value.param == "messages"


def test_template_cannot_reach_outside_its_sandbox() -> None:
    with pytest.raises(RequestError):
        prompt_of("{{ messages.__class__.__base__.__subclasses__() }}")


def test_template_that_is_no_jinja_is_said_with_its_line() -> None:
    with pytest.raises(WeightsError, match="not valid Jinja: line 2: "):
        template("a\n{% if %}")


def test_model_without_a_template_points_to_completions() -> None:
    with pytest.raises(RequestError, match="/v1/completions") as raised:
        template(None).encode([{"role": "user", "content": "hi"}])
    assert raised.value.reason == "no_chat_template"
