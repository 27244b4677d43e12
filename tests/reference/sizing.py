"""A slow, obvious planner: judges each request by itself in plain Python, and tries every number of replicas."""

import math

from sim.ledger import State
from sim.replay import simulate
from traces.formats import open_trace
from traces.shaping import hash_block_tokens, shaped


def latency_ns(ledger, number, metric):
    """Nanoseconds, infinite without an answer; None where the metric does not apply."""
    arrival, first, end = (
        column[number] for column in (ledger.arrival_ns, ledger.first_token_ns, ledger.end_ns)
    )
    gaps = ledger.num_output[number] - 1
    if metric == "tpot" and gaps < 1:
        return None
    if ledger.state[number] != State.DONE:
        return math.inf
    return {"ttft": first - arrival, "tpot": (end - first) / max(gaps, 1), "e2e": end - arrival}[
        metric
    ]


def keeps(ledger, slo):
    """Whether a finished run kept its promises."""
    for clause in slo.clauses:
        values = [latency_ns(ledger, number, clause.metric) for number in range(len(ledger))]
        values = sorted(value for value in values if value is not None)
        if values:
            rank = math.ceil(round(clause.percentile * len(values) / 100, 6))
            if values[rank - 1] > clause.limit_ms * 1e6:
                return False
    if slo.goodput is None:
        return True
    return sum(is_good(ledger, number, slo) for number in range(len(ledger))) >= slo.goodput * len(
        ledger
    )


def is_good(ledger, number, slo):
    """Whether a request of a finished run kept all limits at once, of each metric the widest."""
    limits = {}
    for clause in slo.clauses:
        limits[clause.metric] = max(clause.limit_ms * 1e6, limits.get(clause.metric, 0))
    values = {metric: latency_ns(ledger, number, metric) for metric in limits}
    return ledger.state[number] == State.DONE and all(
        value is None or value <= limits[metric] for metric, value in values.items()
    )


def fewest_replicas(path, machine_of, slo, most):
    """The fewest whose next two keep the promises as well, or None; `machine_of(n)` resolves a fleet of n."""
    holds = []
    for replicas in range(1, most + 1):
        trace = open_trace(path)
        machine = machine_of(replicas)
        shaping = machine.settings.shaping
        run = simulate(shaped(trace, shaping), machine, hash_block_tokens(trace, shaping))
        holds.append(keeps(run.ledger, slo))
    for size in range(1, most + 1):
        if all(holds[size - 1 : size + 2]) and (size == 1 or not holds[size - 2]):
            return size
    return None
