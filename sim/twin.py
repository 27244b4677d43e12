"""The twin: clients, a router and replicas under one simulated clock. Time is integer nanoseconds from the first arrival.

Does not know formats of traces, percentiles or output.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, overload

import numpy as np

from engine.core.content import TraceContent
from engine.core.errors import InvariantError
from engine.core.ids import RequestId, TimeNs
from engine.core.plan import Request
from engine.core.scheduler import Scheduler
from sim.beams import Beams
from sim.clock import Clock
from sim.cost import CostModel
from sim.ledger import Ledger
from sim.link import Link
from sim.replica import Replica
from sim.router import RoundRobin, Router
from sim.workload import Workload
from traces.schema import TraceRequest


class Run(NamedTuple):
    """A replay that is over."""

    ledger: Ledger
    replicas: list[Replica]
    links: list[Link]
    num_held_back: int
    """Requests that were read and never sent: when the run was cut off, they waited for their arrival, for an open one, or for their think time to pass."""


class SwapPath(NamedTuple):
    """How blocks get to the host and back."""

    block_bytes: int
    bytes_per_s: float
    """Of each direction of a link."""
    replicas_per_link: int = 1
    """So many share one."""


class Loads(Sequence[int]):
    """What each replica has to do, asked when it is looked at."""

    def __init__(self, replicas: list[Replica]) -> None:
        self._replicas = replicas

    def __len__(self) -> int:
        return len(self._replicas)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            return [replica.load() for replica in self._replicas[at]]
        return self._replicas[at].load()


class Fleet:
    """Replicas behind a router."""

    def __init__(
        self,
        clock: Clock,
        schedulers: Sequence[Scheduler],
        cost: CostModel,
        *,
        router: Router,
        num_sequences: int,
        beam_seed: int | None,
        hash_block_tokens: int,
        swap: SwapPath | None,
        leaps: bool,
    ) -> None:
        self.ledger = Ledger()
        self.links: list[Link] = []
        self.replicas: list[Replica] = []
        for number, scheduler in enumerate(schedulers):
            if swap is not None and number % swap.replicas_per_link == 0:
                self.links.append(Link(clock, swap.bytes_per_s))
            self.replicas.append(
                Replica(
                    clock,
                    scheduler,
                    cost,
                    self.ledger,
                    link=self.links[-1] if swap is not None else None,
                    block_bytes=swap.block_bytes if swap is not None else 0,
                    number=number,
                    leaps=leaps,
                    beams=Beams(beam_seed) if beam_seed is not None else None,
                )
            )
        self._clock = clock
        self._router = router
        self._num_sequences = num_sequences
        self._beam = beam_seed is not None
        self._hash_block_tokens = hash_block_tokens

    @property
    def now(self) -> TimeNs:
        """The present instant."""
        return self._clock.now

    def submit(self, row: TraceRequest) -> int | None:
        """A request arrives now and is entered in the ledger; its number, or None where it can never run."""
        now, ledger, replicas = self._clock.now, self.ledger, self.replicas
        number = ledger.arrive(now, row.num_prompt, row.num_output)
        chosen = 0
        if len(replicas) > 1:
            chosen = self._router.choose(row, Loads(replicas))
        content = None
        if row.hash_ids:
            content = TraceContent(np.array(row.hash_ids), self._hash_block_tokens)
        request = Request(
            RequestId(number),
            row.num_prompt,
            row.num_output,
            num_sequences=self._num_sequences,
            beam=self._beam,
            content=content,
        )
        rejected = replicas[chosen].submit(request)
        if rejected is not None:
            ledger.reject(number, rejected.code, now)
            return None
        return number


def run_twin(
    requests: Iterable[TraceRequest],
    schedulers: Sequence[Scheduler],
    cost: CostModel,
    *,
    router: Router | None = None,
    num_sequences: int = 1,
    beam_seed: int | None = None,
    hash_block_tokens: int = 0,
    swap: SwapPath | None = None,
    until_ns: int | None = None,
    leaps: bool = True,
    on_start: Callable[[Fleet], None] | None = None,
) -> Run:
    """Replays requests, in arrival order, to the last one's end, or to `until_ns`.

    Args:
        requests: As a trace gives them; their hash ids each cover `hash_block_tokens`.
        schedulers: One for each replica.
        cost: Prices steps.
        router: Chooses among replicas; round robin by default.
        num_sequences: Answers to each prompt.
        beam_seed: They are the hypotheses of a beam search, whose choices are drawn from it; None: they are independent.
        hash_block_tokens: 0 where no request has hash ids.
        swap: How blocks get to the host and back, where schedulers swap.
        until_ns: Stop there.
        leaps: False: every step by itself, slower and with the same result.
        on_start: Sees the fleet before the clock runs; what it lets be raised at the end of a request stops the run.

    Raises:
        InvariantError: a scheduler stopped while requests were open.
        TraceError: from `requests`.
    """
    clock = Clock()
    fleet = Fleet(
        clock,
        schedulers,
        cost,
        router=router or RoundRobin(),
        num_sequences=num_sequences,
        beam_seed=beam_seed,
        hash_block_tokens=hash_block_tokens,
        swap=swap,
        leaps=leaps,
    )
    workload = Workload(clock, requests, fleet.submit)
    for replica in fleet.replicas:
        replica.on_end.append(workload.ended)
        replica.may_pass_ends = workload.is_open
    if on_start is not None:
        on_start(fleet)
    clock.run_on(until_ns)
    for replica in fleet.replicas:
        replica.close()
    open_requests = len(fleet.ledger) - fleet.ledger.num_ended
    if until_ns is None and open_requests:
        raise InvariantError(f"the replay stopped with {open_requests} requests open")
    return Run(fleet.ledger, fleet.replicas, fleet.links, workload.num_held_back)
