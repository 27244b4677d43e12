"""Clients of a running server: some stay to the end, some leave."""

import anyio
import httpx

from tests.reference.strict_sse import DONE, finishes, read_events, text_of

PATH = "/v1/completions"


async def stay(client: httpx.AsyncClient, body: dict[str, object]) -> tuple[str, str]:
    """(text, finish reason) of an answer that is read to its end, streamed or not as `body` says."""
    response = await client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    if not body["stream"]:
        choice = response.json()["choices"][0]
        return choice["text"], choice["finish_reason"]
    events = read_events(response.content)
    assert events[-1] == DONE
    (reason,) = finishes(events)
    return text_of(events), reason


async def leave(client: httpx.AsyncClient, body: dict[str, object], num_events: int) -> None:
    """Closes the connection after some events, one at least; of an answer that is not streamed, after as many hundredths of a second."""
    if body["stream"]:
        async with client.stream("POST", PATH, json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    num_events -= 1
                    if num_events <= 0:
                        return
    else:
        with anyio.move_on_after(0.01 * num_events):
            await client.post(PATH, json=body)
