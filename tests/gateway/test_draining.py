"""A server that is ending: new requests are sent elsewhere, old ones end with a reason."""

import anyio
import httpx

from gateway.app import create_app
from gateway.streams import OpenStreams
from tests.gateway.live import gateway_config, scripted


async def test_draining_server_refuses_with_503_and_says_so_in_its_health() -> None:
    served = scripted([b"a"])
    streams = OpenStreams(served.engine)
    streams.drain()
    transport = httpx.ASGITransport(create_app(gateway_config(), served, streams=streams))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        refused = await client.post("/v1/completions", json={"prompt": "hi"})
        health = await client.get("/health")
    assert refused.status_code == 503
    assert refused.json()["error"] == {
        "message": "the server is shutting down and takes no new requests",
        "type": "server_error",
        "param": None,
        "code": "shutting_down",
    }
    assert health.json()["status"] == "draining"


async def test_answer_that_is_not_streamed_is_a_503_when_the_server_cuts_it() -> None:
    served = scripted()
    streams = OpenStreams(served.engine)
    transport = httpx.ASGITransport(create_app(gateway_config(), served, streams=streams))
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://x") as client,
        anyio.create_task_group() as group,
    ):
        answers: list[httpx.Response] = []

        async def ask() -> None:
            body = {"prompt": "hi", "max_tokens": 400, "ignore_eos": True}
            answers.append(await client.post("/v1/completions", json=body))
            group.cancel_scope.cancel()

        group.start_soon(ask)
        while len(streams) == 0:
            await anyio.lowlevel.checkpoint()
        streams.cut()
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["code"] == "shutting_down"
    assert len(streams) == 0
