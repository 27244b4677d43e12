"""A full queue turns requests away with the time after which to come again, from the rate at which requests were admitted."""

import json
import resource
import time

import httpx
import numpy as np
import pytest

from benchmarks._edge_client import END, PATH, Crowd, Reader, request
from engine.core.errors import CapacityError
from engine.core.ids import RequestId
from engine.executor import SamplingParams
from engine.requests import Generation
from gateway.streams import LONGEST_WAIT_MS, SHORTEST_WAIT_MS, OpenStreams
from tests.gateway.live import live, scripted
from tests.gateway.test_server import process


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def generation() -> Generation:
    return Generation(prompt=np.array([3, 4], np.int32), sampling=SamplingParams(), max_tokens=4)


@pytest.mark.parametrize(
    ("per_second", "wait_ms"), [(4.0, 1_250), (100.0, SHORTEST_WAIT_MS), (0.01, LONGEST_WAIT_MS)]
)
def test_wait_is_half_the_queue_over_the_measured_rate(per_second: float, wait_ms: int) -> None:
    clock = Clock()
    streams = OpenStreams(scripted(max_queue=10).engine, clock)
    for _ in range(10):
        streams.open(generation(), "cmpl-x", "completions")
    for _ in range(20):
        streams.admitted(RequestId(999))
        clock.now += 1 / per_second
    with pytest.raises(CapacityError) as raised:
        streams.open(generation(), "cmpl-y", "completions")
    assert raised.value.retry_after_ms == wait_ms


def test_client_is_told_in_whole_seconds() -> None:
    with live(scripted(max_queue=0)) as client:
        refused = client.post("/v1/completions", json={"prompt": "hi"})
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"


QUEUE = 128
ROOM = 64 + QUEUE
"""Requests that run and wait at most."""
BURST = {"max_tokens": 50, "ignore_eos": True, "stream": True}


def head_and_body(reader: Reader) -> tuple[bytes, bytes]:
    head, _, body = b"".join(reader.pieces).partition(b"\r\n\r\n")
    return head, body


def status(reader: Reader) -> int | None:
    return int(reader.pieces[0].split()[1]) if reader.pieces else None


def is_over(reader: Reader) -> bool:
    """Its answer is complete, and its connection perhaps closed since, as idle ones are after a minute."""
    last = b"".join(reader.pieces[-2:])
    return last.endswith((END, b"}}"))


@pytest.mark.parametrize("num", [1_500, pytest.param(5_000, marks=pytest.mark.slow)])
def test_burst_is_refused_at_once_in_shape_and_told_a_time_after_which_there_is_room(
    num: int,
) -> None:
    """The server runs 64 requests at once, lets 128 wait, and needs half a second for a batch or more: far longer than the burst takes to come."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < num + 100:
        pytest.skip("too few descriptors are allowed")
    with (
        process(drain_s=0, max_queue=QUEUE) as (_, url),
        httpx.Client(base_url=url, timeout=120) as client,
        Crowd((client.base_url.host, client.base_url.port or 0)) as crowd,
    ):
        sent = [crowd.join([request(PATH, BURST | {"prompt": f"{i}"})])[0] for i in range(num)]
        begun = time.monotonic()
        client.get("/health")  # comes after all of them
        assert time.monotonic() - begun < 20 * num / 1_500
        while sum(map(is_over, sent)) < len(sent) - ROOM:
            crowd.read_for(0.1)
        refused = [reader for reader in sent if status(reader) == 429]
        assert refused
        waits_s = []
        for reader in refused:
            head, body = head_and_body(reader)
            error = json.loads(body)["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "over_capacity")
            waits_s.append(int(head.partition(b"retry-after: ")[2].partition(b"\r")[0]))
        assert all(1 <= wait <= 12 for wait in waits_s)
        crowd.read_for(max(waits_s))
        assert client.post(PATH, json=BURST | {"prompt": "again"}).status_code == 200
        while not all(map(is_over, sent)):
            crowd.read_for(0.1)
        served = [
            reader for reader in sent if head_and_body(reader)[0].startswith(b"HTTP/1.1 200 ")
        ]
        assert len(served) + len(refused) == num
        assert all(b"data: [DONE]" in head_and_body(reader)[1] for reader in served)
