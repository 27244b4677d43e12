"""A request that our own code fails half-way leaves nothing running."""

from typing import Any

import httpx
import msgspec

from engine.requests import Generation
from gateway.app import create_app
from tests.gateway.live import gateway_config, scripted


class BreaksAtSecond:
    """An engine that breaks when a second generation is opened."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def open(self, generation: Generation) -> Any:
        if self._engine.num_open:
            raise ValueError("a defect")
        return self._engine.open(generation)


async def test_of_several_prompts_those_that_were_open_when_one_failed_are_ended() -> None:
    served = scripted([b"a"])
    broken = msgspec.structs.replace(served, engine=BreaksAtSecond(served.engine))
    transport = httpx.ASGITransport(
        app=create_app(gateway_config(), broken), raise_app_exceptions=False
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post("/v1/completions", json={"prompt": ["one", "two"]})
    assert answer.status_code == 500
    assert served.engine.num_open == 0
