"""The link between devices and host memory: transfers in each direction, one at a time in the order they were asked for.

Knows sizes only. Devices that share a host's link wait for each other.
"""

from collections.abc import Generator
from typing import Final

import simpy

from sim.clock import Clock

LATENCY_NS: Final = 10_000
"""From asking for a copy to its first byte."""


class Link:
    """Full duplex; each direction has the whole bandwidth."""

    def __init__(self, clock: Clock, bytes_per_s: float) -> None:
        self._clock = clock
        self._ns_per_byte = 1e9 / bytes_per_s
        self._lanes = {out: simpy.Resource(clock, capacity=1) for out in (True, False)}
        self.busy_ns = 0
        """Of both directions together."""

    def carry(self, num_bytes: int, *, out: bool) -> Generator[simpy.Event, None, None]:
        """Takes as long as the transfers before it in this direction, and its own bytes. For a SimPy process."""
        with self._lanes[out].request() as turn:
            yield turn
            duration = LATENCY_NS + round(num_bytes * self._ns_per_byte)
            yield self._clock.timeout(duration)
            self.busy_ns += duration
