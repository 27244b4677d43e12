"""How many live pages are fed at once: never more than may be, also when they come in one moment."""

import asyncio

from starlette.types import Message

from gateway.app import create_app
from tests.gateway.live import gateway_config, scripted

SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "method": "GET",
    "path": "/live",
    "raw_path": b"/live",
    "query_string": b"",
    "headers": [],
}


async def test_viewers_that_come_at_once_are_no_more_than_may_look_and_leave_room_when_gone() -> (
    None
):
    app = create_app(gateway_config(max_viewers=2), scripted([b"a"]))

    async def look(count: int) -> list[int]:
        """Statuses of so many viewers, who leave when the last of them has his."""
        statuses: list[int] = []
        all_told = asyncio.Event()

        async def receive() -> Message:
            await all_told.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                if len(statuses) == count:
                    all_told.set()

        await asyncio.gather(*(app(dict(SCOPE), receive, send) for _ in range(count)))
        return sorted(statuses)

    assert await look(6) == [200] * 2 + [429] * 4
    assert await look(2) == [200] * 2
