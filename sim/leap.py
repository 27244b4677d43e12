"""A leap of a replica: a forecast of the core with the time of each of its steps, and the levels of memory and queues on the way.

Knows no clock and calls no scheduler.
"""

from collections.abc import Sequence

import numpy as np

from engine.core.leap import Advanced, Ended, Forecast
from sim.cost import CostModel, StepWork, decode_work, further
from sim.occupancy import Level
from sim.timeline import Ints


class Leap:
    """What runs from a plan on, until something comes from outside. Steps are numbered from 1, the plan's own."""

    def __init__(self, ahead: Forecast, work: StepWork, cost: CostModel, now: int) -> None:
        """The plan, whose features are `work`, starts now."""
        self.ahead = ahead
        self.limit = ahead.steps
        """The step after which the next plan is another one."""
        self.arrivals: list[int] = []
        """When requests came, all of them while one and the same step ran."""
        self._work = work
        self.sizes: Ints | None = None
        self._contexts: Ints | None = None
        ends: Ints = np.empty(ahead.steps, np.int64)
        if ahead.chunk:
            ends[:] = cost.chunks_ns(work, ahead.steps)
        else:
            self.sizes, self._contexts = _decodes(ahead)
            ends[0] = cost.step_ns(work)
            ends[1:] = cost.run_ns(self.sizes, self._contexts)
        ends[0] += now
        ends.cumsum(out=ends)
        self.ends = ends
        """When each step ends."""

    def work_of(self, step: int) -> StepWork:
        """The features of a step."""
        if step == 1:
            return self._work
        if self.sizes is None or self._contexts is None:
            return further(self._work, step - 1)
        return decode_work(int(self.sizes[step - 2]), int(self._contexts[step - 2]))

    def tokens(self, steps: int) -> tuple[int, int]:
        """(positions computed, tokens sampled) in the first `steps` of them."""
        if not steps:
            return 0, 0
        work = self._work
        if self.sizes is None:
            return steps * work.num_tokens, steps * work.num_samples
        later = int(self.sizes[: steps - 1].sum())
        return work.num_tokens + later, work.num_samples + later

    def ended(self, steps: int) -> int:
        """How many sequences have their last token in the first `steps` of them."""
        if not steps:
            return 0
        return self.ahead.num_leaving + int(np.count_nonzero(self.ahead.lasts <= steps))

    def positions(self, steps: int) -> Ints:
        """Positions computed before each of the first `steps` steps, [steps]."""
        work = self._work
        before: Ints = np.zeros(steps, np.int64)
        if steps > 1:
            before[1] = work.num_tokens
            before[2:] = work.num_tokens if self.sizes is None else self.sizes[: steps - 2]
        return before.cumsum()


def _decodes(ahead: Forecast) -> tuple[Ints, Ints]:
    """(how many decode, their contexts together) in each step from the second on."""
    steps, starts, lasts = ahead.steps, ahead.starts, ahead.lasts
    size = len(starts)
    total = sum(starts.tolist())
    number = np.arange(1, steps)
    if min(lasts.tolist()) >= steps:
        sizes: Ints = np.empty(steps - 1, np.int64)
        sizes.fill(size)
        return sizes, total + size * number
    order = lasts.argsort()
    gone = lasts[order].searchsorted(number, side="right")
    left: Ints = np.empty(size + 1, np.int64)
    left[0] = 0
    starts[order].cumsum(out=left[1:])
    sizes = size - gone
    return sizes, total - left[gone] + sizes * number


class Levels:
    """The series during the first `steps` steps of a leap, and what they are in each."""

    def __init__(
        self,
        leap: Leap,
        advanced: Advanced,
        start: Level,
        steps: int,
        *,
        lead: int,
        total: int,
        freed: Sequence[tuple[int, int]],
        block_size: int,
    ) -> None:
        """From the level at the leap's start.

        Args:
            leap: The leap.
            advanced: What the core said of it.
            start: Before blocks for its second step were begun.
            steps: At least 1.
            lead: By how many steps blocks are begun before the step before them ends.
            total: Blocks of the pool.
            freed: Of each entry of `advanced.ended`: positions, and blocks named, of the sequences that ended.
            block_size: Positions of a block where blocks are shared, else 0.
        """
        self._size = steps
        held, cached, used, running, waiting, busy = start
        self.held: Ints = np.empty(steps, np.int64)
        self.held.fill(held)
        if len(advanced.grown):
            begun = np.arange(1 + lead, steps + 1 + lead)
            self.held += advanced.grown.searchsorted(begun, side="right")
        self.used = leap.positions(steps) + used
        self.running: Ints | int = running
        self.cached: Ints | int = cached
        self._waiting, self._busy = waiting, busy
        ended = [e for e in advanced.ended if e.step < steps]
        if ended:
            self._end(ended, freed, total, block_size)
        if cached or any(e.cached_blocks for e in ended):
            caps: Ints = np.empty(steps, np.int64)
            caps.fill(cached)
            for e in ended:
                caps[e.step :] = e.cached_blocks
            self.cached = np.minimum(caps, total - self.held)

    def _end(
        self, ended: list[Ended], freed: Sequence[tuple[int, int]], total: int, block_size: int
    ) -> None:
        running: Ints = np.empty(self._size, np.int64)
        running.fill(self.running)
        for e, (positions, blocks) in zip(ended, freed, strict=False):
            at = e.step
            released = int(self.held[at - 1]) - (total - e.free_blocks)
            self.held[at:] -= released
            self.used[at:] -= positions - (blocks - released) * block_size
            running[at:] -= len(e.requests)
        self.running = running

    def first(self, steps: int) -> tuple[Ints | int, ...]:
        """The series during the first steps."""
        return (
            self.held[:steps],
            self.cached[:steps] if isinstance(self.cached, np.ndarray) else self.cached,
            self.used[:steps],
            self.running[:steps] if isinstance(self.running, np.ndarray) else self.running,
            self._waiting,
            self._busy,
        )

    def last(self) -> Level:
        """The level during the last step."""
        return Level(
            int(self.held[-1]),
            int(self.cached[-1]) if isinstance(self.cached, np.ndarray) else self.cached,
            int(self.used[-1]),
            int(self.running[-1]) if isinstance(self.running, np.ndarray) else self.running,
            self._waiting,
            self._busy,
        )
