"""Fifty clients at once, half of which leave: the others get exactly their answer, and the pool is free afterwards (FR-10)."""

import random
from collections.abc import Sequence
from typing import Any

import anyio
import httpx
import pytest

from engine.chat import ChatTemplate
from engine.core.config import CoreConfig, MemoryConfig, SchedulerConfig
from engine.core.plan import Plan
from engine.executor import NewSequence, Sampled
from engine.loop import Engine
from engine.runner import TorchRunner, build_runner
from engine.tokenizer import Codec
from engine.weights.load import load_model
from gateway.engine import Served
from tests.e2e.clients import leave, stay
from tests.engine.gate import Gate
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


def leaves_before_it_hears(i: int, body: dict[str, Any]) -> bool:
    """Whether client `i` goes after a while instead of after a number of events."""
    return i % 2 == 1 and not body["stream"]


async def all_at_once(
    url: str, bodies: list[dict[str, Any]], gate: Gate
) -> dict[int, tuple[str, str]]:
    """Answers of the even clients; the odd ones leave, each after its own number of events.

    No step ends before all who stay for one have been taken in: however slow clients or server are, they are there at once.
    """
    answers: dict[int, tuple[str, str]] = {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    brief = {i for i, body in enumerate(bodies) if leaves_before_it_hears(i, body)}

    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:

        async def one(i: int) -> None:
            if i % 2:
                await leave(client, bodies[i], num_events=i % 7)
            else:
                answers[i] = await stay(client, bodies[i])

        async def all_are_taken_in() -> None:
            while True:
                said = (await client.get("/health")).json()
                if said["running"] + said["waiting"] == NUM_CLIENTS - len(brief):
                    return

        async with anyio.create_task_group() as group:
            for i in sorted(set(range(NUM_CLIENTS)) - brief):
                group.start_soon(one, i)
            with anyio.fail_after(100):
                await all_are_taken_in()
            for i in sorted(brief):
                group.start_soon(one, i)
            gate.open()
    return answers


def answers_of(
    client: httpx.Client, bodies: list[dict[str, Any]], gate: Gate
) -> dict[int, tuple[str, str]]:
    """What `all_at_once` returns, and the pool is free again."""
    try:
        answers = anyio.run(all_at_once, str(client.base_url), bodies, gate)
    finally:
        gate.open()
    wait_until_free(client)
    return answers


def test_scripted_model_with_a_pool_so_tight_that_it_preempts() -> None:
    bodies = requests(longest_prompt=12, longest_answer=120)
    gate = Gate()
    served = scripted(num_blocks=96, max_context=256, pace=gate)
    with live(served, ping_s=0) as client:
        answers = answers_of(client, bodies, gate)
    assert sorted(answers) == list(range(0, NUM_CLIENTS, 2))
    for i, (text, reason) in answers.items():
        prompt = served.codec.encode(bodies[i]["prompt"])
        tokens = scripted_answer(prompt, bodies[i]["max_tokens"], served.codec.vocab_size)
        assert text == served.codec.decode(tokens)
        assert reason == "length"
    assert served.engine.counters.preemptions > 0, "the pool was not tight"


class HeldRunner:
    """A runner whose steps begin when a gate lets them."""

    def __init__(self, runner: TorchRunner, gate: Gate) -> None:
        self._runner = runner
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, plan: Plan, new: Sequence[NewSequence]) -> Sampled:
        self._gate(plan)
        return self._runner.execute(plan, new)


@pytest.mark.model
def test_default_model() -> None:
    model = load_model(None)
    runner = build_runner(model, num_blocks=160, block_size=16, max_context=512)
    codec = Codec(model.tokenizer)
    core = CoreConfig(
        memory=MemoryConfig(num_blocks=160, block_size=16),
        scheduler=SchedulerConfig(max_context=512),
    )
    gate = Gate()
    engine = Engine(HeldRunner(runner, gate), core, codec, model_name=model.name)
    served = Served(engine, codec, ChatTemplate(codec, model.tokenizer.chat_template))
    bodies = requests(longest_prompt=60, longest_answer=24)
    with live(served, ping_s=0) as client:
        answers = answers_of(client, bodies, gate)
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
