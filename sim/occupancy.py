"""Occupancy: how many token positions of the pool are in use, from counters that cost the same for any batch.

Where sequences fork, go off or move between pools it asks the scheduler's memory report instead, which costs more and counts
everything. Knows no time.

Without those, only full blocks of prompts are shared, so a position is in use more than once exactly in the blocks that tables
name more often than the pool holds them: used = computed - (named - held) * block size.
"""

from typing import NamedTuple

from engine.core.plan import Plan
from engine.core.scheduler import Scheduler


class Level(NamedTuple):
    """The pool and the queues from one moment to the next."""

    held_blocks: int
    cached_blocks: int
    used_tokens: int
    running: int
    waiting: int
    busy: int
    """1 while a step runs."""


IDLE = Level(0, 0, 0, 0, 0, 0)


class Occupancy:
    """Counts along with a scheduler; told of everything that it does to memory."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._memory = scheduler.allocator
        self._shares = scheduler.config.memory.prefix_cache
        self._computed = 0
        """Positions computed, of sequences that hold frames; a shared one counts for each."""
        self._named = 0
        """Entries of block tables."""
        self._named_ahead = 0
        """Of these, the ones that no plan has named yet."""
        self._hits = 0
        self._preemptions = 0
        self.forking = 0
        """Requests of several sequences that are open."""
        self.moving = 0
        """Transfers in flight."""
        self._disturbed = False
        """Since the last report something may have gone uncounted; a plan must be opened without it before counters are right."""
        self._opened = False

    def opened(self, plan: Plan) -> None:
        """A plan was made."""
        self._opened = True
        if self._shares:
            self._named += len(plan.delta_rows) - self._named_ahead
            self._named_ahead = 0
            hits = self._scheduler.prefix_hits_tokens
            if hits != self._hits:
                self._computed += hits - self._hits
                self._hits = hits

    def grew(self, num_blocks: int) -> None:
        """Sequences were given so many frames, which the next plan that is opened names."""
        self._named += num_blocks
        self._named_ahead += num_blocks

    def computed(self, num_tokens: int) -> None:
        """So many positions were computed."""
        self._computed += num_tokens

    def ended(self, lengths: list[int]) -> tuple[int, int]:
        """Sequences that had computed so many positions have given back their frames; (positions, entries of tables) of all."""
        size = self._memory.block_size
        positions = entries = 0
        for length in lengths:
            positions += length
            entries -= -length // size
        self._computed -= positions
        self._named -= entries
        return positions, entries

    @property
    def shared_block_size(self) -> int:
        """Positions of a block; 0 where no block is ever shared, so that the pool's are those of the tables."""
        return self._memory.block_size if self._shares else 0

    def level(self, busy: int) -> Level:
        """What is so now, between calls of the scheduler."""
        scheduler, memory = self._scheduler, self._memory
        preemptions, off = scheduler.num_preemptions, scheduler.num_off
        disturbed = bool(self.forking or self.moving or off or preemptions != self._preemptions)
        if disturbed or self._disturbed:
            self._disturbed = disturbed or not self._opened
            self._opened = False
            self._preemptions = preemptions
            return self._counted(busy)
        held = memory.total_blocks - memory.free_blocks
        used = self._computed
        if self._shares:
            used -= (self._named - held) * memory.block_size
        running, waiting = scheduler.num_running, scheduler.num_waiting
        return Level(held, memory.cached_blocks, used, running, waiting, busy)

    def _counted(self, busy: int) -> Level:
        report = self._scheduler.memory()
        held, used = report.held_blocks, report.used_tokens
        self._named = report.logical_blocks
        self._computed = used + (self._named - held) * report.block_size
        return Level(held, report.cached_blocks, used, report.num_running, report.num_waiting, busy)
