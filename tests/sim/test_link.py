"""The link to the host: one transfer at a time in each direction, directions beside each other."""

import pytest

from sim.clock import Clock
from sim.link import LATENCY_NS, Link


def carried(*transfers: tuple[int, int, bool]) -> tuple[list[int], Link]:
    """When each of (asked at, bytes, out) was over, at a byte a nanosecond."""
    clock = Clock()
    link = Link(clock, bytes_per_s=1e9)
    ends = [-1] * len(transfers)

    def ask(number, at, num_bytes, out):
        yield clock.timeout(at)
        yield from link.carry(num_bytes, out=out)
        ends[number] = clock.now

    for number, (at, num_bytes, out) in enumerate(transfers):
        clock.process(ask(number, at, num_bytes, out))
    clock.run_on(None)
    return ends, link


@pytest.mark.parametrize("out", [True, False])
def test_transfers_of_one_direction_wait_for_each_other(out):
    ends, link = carried((0, 500, out), (100, 700, out))
    assert ends == [LATENCY_NS + 500, 2 * LATENCY_NS + 1200]
    assert link.busy_ns == 2 * LATENCY_NS + 1200


def test_directions_do_not_wait_for_each_other():
    ends, _ = carried((0, 500, True), (0, 700, False))
    assert ends == [LATENCY_NS + 500, LATENCY_NS + 700]
