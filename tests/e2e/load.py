"""Requests that are read in the background, and how a scripted model takes its time."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import httpx

LONG = {"max_tokens": 200, "ignore_eos": True, "stream": True}


def slow(plan: object) -> None:
    """A step takes 20 ms."""
    time.sleep(0.02)


@contextmanager
def streaming(
    client: httpx.Client, prompts: list[str], *, again: bool = False, **fields: object
) -> Iterator[SimpleQueue[int]]:
    """Requests that are read in the background until they end or the block does; statuses of those that ended, as they do.

    With `again` each is sent anew when it has ended.
    """
    ends: SimpleQueue[int] = SimpleQueue()
    leave = threading.Event()

    def read(prompt: str) -> None:
        while not leave.is_set():
            with httpx.stream(
                "POST",
                str(client.base_url.join("/v1/completions")),
                json=LONG | {"prompt": prompt} | fields,
                timeout=120,
            ) as response:
                for _ in response.iter_bytes():
                    if leave.is_set():
                        return
                ends.put(response.status_code)
            if not again:
                return

    threads = [threading.Thread(target=read, args=[prompt]) for prompt in prompts]
    for thread in threads:
        thread.start()
    try:
        yield ends
    finally:
        leave.set()
        for thread in threads:
            thread.join(60)
