"""What no fleet can do with less: device time for a whole trace, and replicas at its worst moment. Knows cost models by lines below them.

*Device time.* Whoever serves the trace within the promises runs steps that compute at least what `demand` says, for every request but the few that may break
promises; `work` charges each request no more than its part of those steps. So the sum of the charges, less the largest that may be left out, is at most the
device time of any schedule: of any number of replicas that come and go at any moment, any router, any order, and knowledge of the future. A replica that is
there for nothing takes more. It does not matter when requests come, so it holds for sessions, too.

*Replicas.* Between two moments a and b, n replicas give n · (b - a) of device time. A request that comes after a, and whose promises end before b, has all its work
between them; of its prompt that is so where the promise of its first token ends before b. So n is at least that work over b - a. It needs
arrivals that depend on nothing, so sessions have no such bound.
"""

import math
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct

from engine.core.ids import RequestId
from engine.core.limits import limit_of
from engine.core.plan import Rejected, Request
from engine.core.scheduler import Scheduler
from sim.arrays import Bools
from sim.floors import floors_of
from sim.plan.crest import crest_of
from sim.plan.demand import Demand, demand_of
from sim.plan.exempt import allowance_of, kept_work, tpot_choices
from sim.plan.trial import Filter
from sim.plan.work import RULES, machine_of, work_of
from sim.pricing import make_cost
from sim.replay import core_config, memory_of
from sim.report.figures import Resolved
from traces.formats import open_trace
from traces.schema import TraceRequest
from traces.shaping import hash_block_tokens, shaped
from traces.slo import Slo

ROUNDING: Final = 1 - 1e-9
"""Sums of 64-bit floats are this exact."""


class BoundFigures(Struct, frozen=True, kw_only=True):
    """A trace's least device time on one kind of replica."""

    device_s: float
    """Of all replicas together."""
    exempt: int
    """Requests that may be refused."""
    peak: int | None
    """No fleet of fewer replicas does; None where requests wait for others."""
    peak_from_s: float | None
    """Where: seconds from the first arrival."""
    peak_to_s: float | None


def least(
    trace: Path, resolved: Resolved, slo: Slo, strict: bool, only_fitting: bool
) -> BoundFigures | None:
    """A worker's job: the bound; None where nothing is known below the cost model, which is a table.

    Raises:
        TraceError: a bad row under `strict`.
        ConfigError: a setting does not fit the trace.
    """
    source = open_trace(trace, strict=strict)
    shaping = resolved.settings.shaping
    kept = Filter(resolved.max_context if only_fitting else None)
    rows = kept.watch(shaped(source, shaping))
    return least_of(rows, resolved, slo, hash_block_tokens(source, shaping))


def least_of(
    rows: Iterable[TraceRequest], resolved: Resolved, slo: Slo, block_tokens: int
) -> BoundFigures | None:
    """The bound for these requests; hash ids cover `block_tokens` each. None where nothing is known below the cost model."""
    lines = floors_of(make_cost(resolved), resolved.settings.token_budget)
    if not lines:
        return None
    settings = resolved.settings
    shares = settings.prefix_cache and settings.allocator == "paged"
    demand = demand_of(rows, settings.block_size, block_tokens if shares else 0)
    lost = _never_run(demand, resolved)
    several = demand.output > 1
    allowance = allowance_of(slo, several, lost)
    machine = machine_of(resolved)
    best_ns, best = 0.0, None
    for clause in tpot_choices(slo):
        limit = clause.limit_ns if clause is not None else None
        for line, rule in product(lines, RULES):
            work = work_of(demand, line, rule, machine, limit)
            for part in (work.prompt, work.decode, work.in_time):
                part[lost] = 0.0
            whole = work.prompt + work.decode
            ns = kept_work(whole, work.in_time, several, allowance, clause)
            if ns > best_ns:
                best_ns, best = ns, (work, clause)
    crest = None
    if best is not None and demand.is_free.all() and (np.diff(demand.arrival_ns) >= 0).all():
        crest = crest_of(demand, *best, slo, allowance)
    return BoundFigures(
        device_s=best_ns * ROUNDING / 1e9,
        exempt=int(min(allowance.requests, allowance.with_tpot + (~several).sum(), len(lost))),
        peak=math.ceil(crest.replicas * ROUNDING) if crest is not None else None,
        peak_from_s=crest.start_ns / 1e9 if crest is not None else None,
        peak_to_s=crest.end_ns / 1e9 if crest is not None else None,
    )


def _never_run(demand: Demand, resolved: Resolved) -> Bools:
    """Which requests the core rejects as they come."""
    config = core_config(resolved, make_cost(resolved))
    memory = Scheduler(config, memory_of(resolved)).allocator
    settings = resolved.settings
    width = settings.beam_width or settings.num_sequences

    def is_rejected(prompt: int, output: int) -> bool:
        request = Request(RequestId(0), prompt, output, num_sequences=width)
        return isinstance(limit_of(request, config, memory), Rejected)

    pairs = zip(demand.prompt.tolist(), demand.output.tolist(), strict=True)
    return np.array([is_rejected(*lengths) for lengths in pairs], np.bool_)
