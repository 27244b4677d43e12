"""A full queue turns requests away with the time after which to come again, from the rate at which requests were admitted."""

import numpy as np
import pytest

from engine.core.errors import CapacityError
from engine.core.ids import RequestId
from engine.executor import SamplingParams
from engine.requests import Generation
from gateway.streams import LONGEST_WAIT_MS, SHORTEST_WAIT_MS, OpenStreams
from tests.gateway.live import live, scripted


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
