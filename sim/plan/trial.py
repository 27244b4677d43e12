"""One simulated fleet, judged: the job that workers do for a plan. Prices and comparisons are none of its business."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from engine.core.errors import ConfigError, ServeError
from sim.hindsight import hindsight, totals_of
from sim.judge import judge_ledger
from sim.ledger import Ledger, State
from sim.occupancy import Level
from sim.replay import no_requests, simulate
from sim.report.figures import Hindsight, Resolved
from sim.twin import Fleet, Run
from traces.formats import open_trace
from traces.judge import ClauseFigure, Judgement, Populations
from traces.schema import ROOT, TraceRequest
from traces.shaping import hash_block_tokens, shaped
from traces.slo import Slo
from traces.stats import Spread, spread

LOOK_EVERY: Final = 64
"""So many requests, or a sixteenth of those that have come, end between two looks at whether a run is hopeless."""


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of a run."""

    meets: bool
    stopped_s: float | None
    """When it was given up."""
    clauses: list[ClauseFigure]
    good_share: float | None
    submitted: int
    done: int
    rejected: dict[str, int]
    unfinished: int
    undecided: int
    warm_up: int
    """Requests that no promise covers."""
    sessions: int
    left_out: int
    """Requests of the file that were not sent, because the context could not hold them."""
    hashed: bool
    """Some requests have known content."""
    bad: dict[str, int]
    """Rows of the file that are no requests, by code."""
    preemptions: int
    ttft_ms: Spread
    tpot_ms: Spread
    e2e_ms: Spread
    span_s: float
    """From the first arrival to the last."""
    simulated_s: float
    busy_share: float
    output_tokens: int
    prompt_tokens: int
    """Of requests that are done."""
    memory: Hindsight | None
    """Where KV memory went; None for a run that was given up."""


class GiveUpError(ServeError):
    """The run cannot keep its promises any more."""

    def __init__(self) -> None:
        super().__init__("the run was given up")


class Filter:
    """Looks at requests as they pass; may leave out those that the context cannot hold, and the rest of their session with them."""

    def __init__(self, max_context: int | None = None) -> None:
        """None: leaves out nothing."""
        self.sessions: set[int] = set()
        self.hashed = False
        self.left_out = 0
        self._max_context = max_context
        self._cut: set[int] = set()
        """Sessions that have lost a request."""

    def watch(self, requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
        """Yields those that fit."""
        most = self._max_context
        for row in requests:
            if most is not None and (
                row.num_prompt + row.num_output > most or row.session in self._cut
            ):
                self.left_out += 1
                if row.session != ROOT:
                    self._cut.add(row.session)
                continue
            if row.session != ROOT:
                self.sessions.add(row.session)
            self.hashed = self.hashed or bool(row.hash_ids)
            yield row


def run_trial(
    trace: Path,
    resolved: Resolved,
    slo: Slo,
    strict: bool,
    only_fitting: bool,
    most: Populations | None,
) -> Outcome:
    """A worker's job: the trace on the fleet.

    Args:
        trace: The file.
        resolved: The fleet, and what is asked of the trace.
        slo: The promises.
        strict: Refuse a trace with a bad row.
        only_fitting: Leave out what the context cannot hold.
        most: Give up once the promises cannot be kept by so many requests; None: run to the end.

    Raises:
        TraceError: a bad row under `strict`, or no request.
        ConfigError: a setting does not fit the trace.
    """
    source = open_trace(trace, strict=strict)
    shaping = resolved.settings.shaping
    kept = Filter(resolved.max_context if only_fitting else None)
    outcome = run_judged(
        shaped(source, shaping), resolved, hash_block_tokens(source, shaping), slo, kept, most=most
    )
    if not outcome.submitted:
        if kept.left_out:
            raise ConfigError(
                f"none of the {kept.left_out:,} requests fits a context of {resolved.max_context:,} tokens"
            )
        raise no_requests(source)
    outcome.bad.update(source.bad_counts)
    return outcome


def run_judged(
    requests: Iterable[TraceRequest],
    resolved: Resolved,
    block_tokens: int,
    slo: Slo,
    kept: Filter,
    *,
    most: Populations | None = None,
    from_ns: int = 0,
) -> Outcome:
    """Runs the requests that are kept on the fleet and judges; those that arrive before `from_ns` are not judged."""
    fleets: list[Fleet] = []

    def watch(fleet: Fleet) -> None:
        fleets.append(fleet)
        if most is not None:
            look = _looker(fleet, slo, most, from_ns)
            for replica in fleet.replicas:
                replica.on_end.append(look)

    try:
        run: Run | None = simulate(kept.watch(requests), resolved, block_tokens, watch)
    except GiveUpError:
        run = None
    fleet = fleets[0]
    judgement = judge_ledger(fleet.ledger, fleet.now, from_ns).judge(slo)
    memory = hindsight(run, resolved, totals_of(run)) if run is not None else None
    return _outcome(fleet, judgement, kept, from_ns, memory)


def _looker(fleet: Fleet, slo: Slo, most: Populations, from_ns: int) -> Callable[[int], None]:
    """Told of each request that ends; raises where there is no hope."""
    left = LOOK_EVERY

    def look(_: int) -> None:
        nonlocal left
        left -= 1
        if not left:
            left = max(LOOK_EVERY, len(fleet.ledger) // 16)
            for replica in fleet.replicas:
                replica.settle()
            if judge_ledger(fleet.ledger, fleet.now, from_ns).is_hopeless(slo, most):
                raise GiveUpError

    return look


def _outcome(
    fleet: Fleet, judgement: Judgement, kept: Filter, from_ns: int, memory: Hindsight | None
) -> Outcome:
    """`memory` is known of a run that was not given up."""
    is_whole = memory is not None
    ledger, replicas, end_ns = fleet.ledger, fleet.replicas, fleet.now
    latencies = ledger.latencies()
    clauses = judgement.clauses
    busy_ns = 0
    if is_whole:
        busy_ns = sum(Level(*replica.timeline.totals()).busy for replica in replicas)
    return Outcome(
        meets=judgement.meets and is_whole,
        stopped_s=None if is_whole else end_ns / 1e9,
        clauses=clauses if is_whole else [_unknown(clause) for clause in clauses],
        good_share=judgement.good_share if is_whole else None,
        submitted=len(ledger),
        done=ledger.count(State.DONE),
        rejected=ledger.rejections,
        unfinished=ledger.count(State.OPEN),
        undecided=judgement.undecided,
        warm_up=int(np.count_nonzero(np.array(ledger.arrival_ns) < from_ns)),
        sessions=len(kept.sessions),
        left_out=kept.left_out,
        hashed=kept.hashed,
        bad={},
        preemptions=sum(replica.scheduler.num_preemptions for replica in replicas),
        ttft_ms=spread(latencies.ttft_ms),
        tpot_ms=spread(latencies.tpot_ms),
        e2e_ms=spread(latencies.e2e_ms),
        span_s=_span_s(ledger),
        simulated_s=end_ns / 1e9,
        busy_share=busy_ns / (end_ns * len(replicas)) if end_ns else 0.0,
        output_tokens=sum(replica.num_output_tokens for replica in replicas),
        prompt_tokens=ledger.done_prompt_tokens(),
        memory=memory,
    )


def _span_s(ledger: Ledger) -> float:
    return (max(ledger.arrival_ns) - min(ledger.arrival_ns)) / 1e9 if len(ledger) else 0.0


def _unknown(clause: ClauseFigure) -> ClauseFigure:
    return ClauseFigure(
        name=clause.name,
        limit_ms=clause.limit_ms,
        value_ms=None,
        population=clause.population,
        misses=clause.misses,
        allowed=clause.allowed,
    )
