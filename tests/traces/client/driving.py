"""Short ways to run the load client in a test."""

from collections.abc import Sequence
from typing import Any

import anyio

from tests.traces.client.stub import Stub
from tests.traces.client.virtual import VirtualLoop
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
        "timeout_s": 60.0,
    }
    return find_target(url, **{**settings, **fields})


def request(at_s: float, prompt: int = 8, output: int = 4, **fields) -> TraceRequest:
    return TraceRequest(1, round(at_s * SECOND), prompt, output, **fields)


def drive(
    url: str, rows: Sequence[TraceRequest], *, timeout_s: float = 60.0, **fields: Any
) -> Driver:
    """A driver whose run over real connections, in real time, is over."""
    driver = Driver(target_of(url, **fields), Prompts(ONE_A_WORD, 0, seed=0), Outcomes(), timeout_s=timeout_s)  # fmt: skip
    anyio.run(driver.run, rows, backend_options={"use_uvloop": True})
    return driver


def drive_exactly(
    stub: Stub, rows: Sequence[TraceRequest], *, timeout_s: float = 10.0, duration_s: float | None = None, stop_after_s: float | None = None,
    held_up: tuple[float, float] | None = None, **fields: Any,
) -> Driver:  # fmt: skip
    """A driver whose run against `stub` is over, in virtual time: no figure has anything of this machine's speed in it.

    The event loop, which is the stub's too, is held up from one second to another.
    """
    loop = VirtualLoop(stub.serve)
    driver = Driver(
        target_of("http://127.0.0.1:1", **fields),
        Prompts(ONE_A_WORD, 0, seed=0),
        Outcomes(),
        timeout_s=timeout_s,
        duration_s=duration_s,
        clock=loop.time_ns,
    )

    async def main() -> None:
        if stop_after_s is not None:
            loop.call_at(stop_after_s, driver.stop)
        if held_up is not None:
            start, end = held_up
            loop.call_at(start, loop.pass_time, end - start)
        await driver.run(rows)

    anyio.run(main, backend_options={"loop_factory": lambda: loop})
    return driver
