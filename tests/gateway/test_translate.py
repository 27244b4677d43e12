"""Bodies to generations: what each field means to the engine, and the defaults."""

from typing import Any

import anyio.to_thread
import msgspec
import pytest

from engine.executor import SamplingParams
from engine.requests import Generation
from gateway.fields import read_body
from gateway.prompts import THREAD_FROM_CHARS
from gateway.schemas import ChatRequest, CompletionRequest
from gateway.terms import Terms
from gateway.translate import chat_ask, completion_ask
from tests.gateway.live import gateway_config, scripted

CONFIG = gateway_config()


async def completion(max_context: int = 512, **fields: Any) -> Generation:
    body = read_body(msgspec.json.encode({"prompt": "hi"} | fields), CompletionRequest)
    terms = Terms(scripted(max_context=max_context), CONFIG)
    return (await completion_ask(body, terms)).generations[0]


async def chat(*messages: dict[str, Any], **fields: Any) -> tuple[str, Generation]:
    served = scripted()
    body = read_body(msgspec.json.encode({"messages": messages} | fields), ChatRequest)
    generation = (await chat_ask(body, Terms(served, CONFIG))).generations[0]
    return served.codec.decode(generation.prompt), generation


async def test_sampling_fields_reach_the_engine() -> None:
    asked = await completion(
        temperature=0.5, top_p=0.9, top_k=40, seed=7, stop="x", ignore_eos=True
    )
    assert asked.sampling == SamplingParams(temperature=0.5, top_p=0.9, top_k=40, seed=7)
    assert asked.stop == ("x",)
    assert asked.ignore_eos


async def test_defaults_sample_freely_with_a_seed_of_their_own() -> None:
    first, second = await completion(), await completion()
    assert (first.sampling.temperature, first.sampling.top_p, first.sampling.top_k) == (1.0, 1.0, 0)
    assert first.sampling.seed != second.sampling.seed
    assert (first.stop, first.ignore_eos) == ((), False)


async def test_top_p_of_zero_is_greedy_and_top_k_of_minus_one_is_off() -> None:
    asked = await completion(temperature=0.7, top_p=0, top_k=-1)
    assert asked.sampling.temperature == 0.0
    assert asked.sampling.top_p == 1.0
    assert asked.sampling.top_k == 0


@pytest.mark.parametrize("seed", [-1, -(2**63), 0, 2**63 - 1])
async def test_any_64_bit_seed_is_a_seed_of_the_engine(seed: int) -> None:
    assert 0 <= (await completion(seed=seed)).sampling.seed < 2**63


async def test_completions_stop_after_16_tokens_unless_told_or_out_of_context() -> None:
    assert (await completion()).max_tokens == 16
    assert (await completion(max_tokens=100)).max_tokens == 100
    assert (await completion(max_context=8)).max_tokens == 6


async def test_chats_go_on_until_context_or_pool_end_unless_told() -> None:
    message = {"role": "user", "content": "hi"}
    assert (await chat(message))[1].max_tokens is None
    assert (await chat(message, max_tokens=5))[1].max_tokens == 5
    assert (await chat(message, max_completion_tokens=6))[1].max_tokens == 6
    assert (await chat(message, max_completion_tokens=6, max_tokens=6))[1].max_tokens == 6


async def test_token_ids_are_taken_as_they_are() -> None:
    assert (await completion(prompt=[5, 6, 7])).prompt.tolist() == [5, 6, 7]
    assert (await completion(prompt=[[5, 6]])).prompt.tolist() == [5, 6]
    assert (await completion(prompt=["hi"])).prompt.tolist() == (await completion()).prompt.tolist()


async def test_long_prompts_are_encoded_beside_the_loop_to_the_same_ids() -> None:
    text = "x" * THREAD_FROM_CHARS
    asked = await completion(prompt=text, max_context=2 * THREAD_FROM_CHARS)
    assert asked.prompt.tolist() == [ord("x") + 3] * THREAD_FROM_CHARS


async def test_many_short_prompts_leave_the_loop_as_a_long_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = []
    run_sync = anyio.to_thread.run_sync

    async def counted(work: Any) -> Any:
        ids = await run_sync(work)
        sizes.append(len(ids))
        return ids

    monkeypatch.setattr("gateway.prompts.anyio.to_thread.run_sync", counted)
    part = THREAD_FROM_CHARS // 4
    await completion(prompt=["x" * part] * 10, max_context=THREAD_FROM_CHARS)
    assert sizes == [part] * 7


async def test_text_parts_are_joined_by_line_feeds() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    text, _ = await chat({"role": "user", "content": parts})
    assert text == "user\none\ntwoassistant\n"


async def test_developer_is_the_system_to_the_model() -> None:
    text, _ = await chat({"role": "developer", "content": "a"}, {"role": "user", "content": "b"})
    assert text == "system\nauser\nbassistant\n"


async def test_answers_of_this_server_can_be_sent_back_as_messages() -> None:
    answer = {
        "role": "assistant",
        "content": "b",
        "refusal": None,
        "tool_calls": None,
        "function_call": None,
        "audio": None,
        "annotations": [],
        "reasoning_content": "hm",
    }
    text, _ = await chat({"role": "user", "content": "a"}, answer, {"role": "user", "content": "c"})
    assert text == "user\naassistant\nbuser\ncassistant\n"
