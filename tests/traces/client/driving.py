"""Short ways to run the load client in a test."""

import time
from collections.abc import Sequence

import anyio

from traces.client.drive import Driver
from traces.client.outcomes import Outcomes
from traces.client.prompts import Prompts, Yardstick
from traces.client.target import Target, find_target
from traces.schema import TraceRequest

ONE_A_WORD = Yardstick(per_word=1.0, offset=0.0, source="a test")
SECOND = 10**9


def target_of(url: str, **fields) -> Target:
    settings = {
        "endpoint": "completions",
        "model": "fast",
        "api_key": None,
        "ignore_eos": True,
        "temperature": 0.0,
        "timeout_s": 10.0,
    }
    return find_target(url, **{**settings, **fields})


def request(at_s: float, prompt: int = 8, output: int = 4, **fields) -> TraceRequest:
    return TraceRequest(1, round(at_s * SECOND), prompt, output, **fields)


def drive(
    url: str, rows: Sequence[TraceRequest], *, timeout_s: float = 10.0, duration_s: float | None = None, stop_after_s: float | None = None,
    hash_block_tokens: int = 0, held_up: tuple[float, float] | None = None, **fields,
) -> Driver:  # fmt: skip
    """A driver whose run is over; its event loop is held up from one second to another."""
    prompts = Prompts(ONE_A_WORD, hash_block_tokens, seed=0)
    driver = Driver(
        target_of(url, **fields), prompts, Outcomes(), timeout_s=timeout_s, duration_s=duration_s
    )

    async def main() -> None:
        async with anyio.create_task_group() as group:
            if stop_after_s is not None:
                group.start_soon(stop)
            if held_up is not None:
                group.start_soon(hold_up, *held_up)
            await driver.run(rows)
            group.cancel_scope.cancel()

    async def stop() -> None:
        assert stop_after_s is not None
        await anyio.sleep(stop_after_s)
        driver.stop()

    async def hold_up(start: float, end: float) -> None:
        await anyio.sleep(start)
        time.sleep(end - start)  # noqa: ASYNC251

    anyio.run(main, backend_options={"use_uvloop": True})
    return driver
