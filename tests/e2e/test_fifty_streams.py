"""Fifty clients at once, half of which leave: the others get exactly their answer, and the pool is free afterwards (FR-10)."""

import random
from collections import Counter
from typing import Any

import anyio
import httpx
import pytest

from engine.chat import ChatTemplate
from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig
from engine.core.plan import Plan
from engine.loop import Engine
from engine.runner import build_runner
from engine.tokenizer import Codec
from engine.weights.load import load_model
from gateway.engine import Served
from tests.e2e.clients import leave, stay
from tests.gateway.live import live, scripted, wait_until_free
from tests.reference.scripted import scripted_answer

NUM_CLIENTS = 50


def requests(longest_prompt: int, longest_answer: int) -> list[dict[str, Any]]:
    """Bodies of mixed lengths, three of four of them streamed, greedy, in a fixed order."""
    rng = random.Random(50)
    return [
        {
            "prompt": " ".join(
                rng.choices(["page", "frame", "drum", "core"], k=rng.randint(1, longest_prompt))
            ),
            "max_tokens": rng.randint(1, longest_answer),
            "ignore_eos": True,
            "temperature": 0,
            "stream": i % 4 != 3,
        }
        for i in range(NUM_CLIENTS)
    ]


async def all_at_once(url: str, bodies: list[dict[str, Any]]) -> dict[int, tuple[str, str]]:
    """Answers of the even clients; the odd ones leave, each after its own number of events."""
    answers: dict[int, tuple[str, str]] = {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)

    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:

        async def one(i: int) -> None:
            if i % 2:
                await leave(client, bodies[i], num_events=i % 7)
            else:
                answers[i] = await stay(client, bodies[i])

        async with anyio.create_task_group() as group:
            for i in range(NUM_CLIENTS):
                group.start_soon(one, i)
    return answers


def test_scripted_model_with_a_pool_so_tight_that_it_preempts() -> None:
    bodies = requests(longest_prompt=12, longest_answer=120)
    admissions: Counter[int] = Counter()

    def count(plan: Plan) -> None:
        admissions.update(plan.requests[plan.starts == 0].tolist())

    served = scripted(num_blocks=96, max_context=256, pace=count)
    with live(served) as client:
        answers = anyio.run(all_at_once, str(client.base_url), bodies)
        wait_until_free(client)
    assert sorted(answers) == list(range(0, NUM_CLIENTS, 2))
    for i, (text, reason) in answers.items():
        prompt = served.codec.encode(bodies[i]["prompt"])
        tokens = scripted_answer(prompt, bodies[i]["max_tokens"], served.codec.vocab_size)
        assert text == served.codec.decode(tokens)
        assert reason == "length"
    assert max(admissions.values()) > 1, "nothing was preempted, so the pool was not tight"


@pytest.mark.model
def test_default_model() -> None:
    model = load_model(None)
    runner = build_runner(model, num_blocks=160, block_size=16, max_context=512)
    codec = Codec(model.tokenizer)
    core = CoreConfig(
        memory=MemoryConfig(num_blocks=160, block_size=16),
        scheduler=SchedulerConfig(max_context=512),
    )
    engine = Engine(runner, core, codec, model_name=model.name)
    served = Served(engine, codec, ChatTemplate(codec, model.tokenizer.chat_template))
    bodies = requests(longest_prompt=60, longest_answer=24)
    with live(served) as client:
        answers = anyio.run(all_at_once, str(client.base_url), bodies)
        wait_until_free(client)
        again = client.post("/v1/completions", json=bodies[0] | {"stream": False}).json()
        beams = client.post(
            "/v1/completions",
            json={"prompt": "2 + 2 =", "max_tokens": 6, "n": 2, "use_beam_search": True},
        ).json()
        refused = client.post(
            "/v1/completions",
            json={"prompt": "2", "n": 3, "use_beam_search": True, "beam_width": 2},
        )
        wait_until_free(client)
    runner.close()
    assert sorted(answers) == list(range(0, NUM_CLIENTS, 2))
    assert {reason for _, reason in answers.values()} == {"length"}
    assert all(text for text, _ in answers.values())
    assert again["usage"]["completion_tokens"] == bodies[0]["max_tokens"]
    assert again["choices"][0]["finish_reason"] == "length"
    assert len({choice["text"] for choice in beams["choices"]}) == 2
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "beam_width"
