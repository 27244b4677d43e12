"""The official client, unchanged: synchronous and asynchronous, streaming and not."""

from collections.abc import Iterator

import openai
import pytest

from tests.gateway.live import live, scripted

PIECES = [b"the ", b"lan", b"tern", b" glows"]
TEXT = "the lantern glows"
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with live(scripted(PIECES)) as client:
        yield f"{client.base_url}/v1"


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").owned_by == "kilburn"


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="scripted", messages=MESSAGES, max_completion_tokens=9, extra_body={"top_k": 5}
    )
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_streamed_chat(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="scripted",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": False},
        )
    )
    parts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(part or "" for part in parts) == TEXT
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


def test_completion_streamed_and_whole(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="scripted", prompt="hi", stop=["glow"])
    parts = client.completions.create(model="scripted", prompt="hi", stop=["glow"], stream=True)
    assert whole.choices[0].text == "".join(part.choices[0].text for part in parts)
    assert whole.choices[0].text == "the lantern "


async def test_asynchronous_chat_streamed_and_whole(base_url: str) -> None:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        whole = await client.chat.completions.create(model="scripted", messages=MESSAGES)
        stream = await client.chat.completions.create(
            model="scripted", messages=MESSAGES, stream=True
        )
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert whole.choices[0].message.content == "".join(parts) == TEXT


def test_errors_arrive_as_the_clients_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="scripted", messages=MESSAGES, temperature=9)
    assert wrong.value.param == "temperature"


def test_failure_within_a_stream_is_raised() -> None:
    def fault(request: int, position: int) -> str | None:
        return "the logits are bad" if position == 4 else None

    with live(scripted([b"a"] * 9, row_fault=fault)) as server:
        url = f"{server.base_url}/v1"
        with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
            stream = client.completions.create(model="scripted", prompt="hi", stream=True)
            with pytest.raises(openai.APIError, match="the logits are bad"):
                list(stream)
