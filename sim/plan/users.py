"""How a number of users keep a machine busy: each runs sessions of a trace, one after another, in a closed loop. Knows no search.

A user begins at a moment drawn from the warm-up, with a session drawn from the trace, and begins another a pause after the last answer of the
one before; think times are as recorded. Requests sent in the warm-up are not judged, and the run is cut off at its end. The first n of n + 1 users are the
same n users. Sessions share no block, not even two runs of the same one.
"""

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from engine.core.errors import ConfigError
from sim.plan.trial import Filter, Outcome, run_judged
from sim.replay import no_requests
from sim.report.figures import Resolved
from traces.formats import open_trace
from traces.schema import ROOT, TraceRequest
from traces.shaping import hash_block_tokens, shaped
from traces.slo import Slo
from traces.transforms import units

PAUSE_NS: Final = 60 * 10**9
"""Between a user's sessions."""
MOST_IDS: Final = 1 << 40
"""Of a session."""

Seconds = Annotated[float, Meta(gt=0, le=1e7)]


class Crowd(Struct, frozen=True, kw_only=True):
    """Users, and for how long."""

    users: Annotated[int, Meta(ge=1)] = 1
    watched_s: Seconds = 7200.0
    """Judged, after the warm-up."""
    warm_up_s: Seconds = 1200.0
    seed: Annotated[int, Meta(ge=0)] = 0


def run_users(
    trace: Path, resolved: Resolved, slo: Slo, strict: bool, only_fitting: bool, crowd: Crowd
) -> Outcome:
    """A worker's job: a crowd on the machine.

    Raises:
        TraceError: a bad row under `strict`, or no request.
        ConfigError: the trace has no sessions, or a setting does not fit it.
    """
    source = open_trace(trace, strict=strict)
    shaping = replace(resolved.settings.shaping, arrivals="every:1")
    kept = Filter(resolved.max_context if only_fitting else None)
    sessions = [
        _with_small_ids(rows)
        for rows in units(kept.watch(shaped(source, shaping)))
        if rows[0].session != ROOT
    ]
    if not sessions:
        if not kept.left_out:
            raise no_requests(source)
        raise ConfigError(f"no session has a request that fits {resolved.max_context:,} tokens")
    warm_up_ns = round(crowd.warm_up_s * 1e9)
    until_s = crowd.warm_up_s + crowd.watched_s
    machine = replace(resolved, settings=replace(resolved.settings, until_s=until_s))
    outcome = run_judged(
        crowd_requests(sessions, crowd),
        machine,
        hash_block_tokens(source, shaping),
        slo,
        Filter(),
        from_ns=warm_up_ns,
    )
    outcome.bad.update(source.bad_counts)
    return replace(outcome, left_out=kept.left_out, sessions=len(kept.sessions))


def crowd_requests(sessions: list[list[TraceRequest]], crowd: Crowd) -> Iterator[TraceRequest]:
    """The requests of all users, a user's together as one long session, users in the order in which they begin."""
    starts = []
    for user in range(crowd.users):
        rng = np.random.default_rng([crowd.seed, user])
        starts.append((round(rng.random() * crowd.warm_up_s * 1e9), user, rng))
    total_ns = round((crowd.warm_up_s + crowd.watched_s) * 1e9)
    free_id = 0
    for start, user, rng in sorted(starts, key=lambda begun: begun[:2]):
        turns = 0
        thought = start
        while thought < total_ns:
            rows = sessions[int(rng.integers(len(sessions)))]
            yield from _joined(rows, user, turns, start, free_id)
            free_id += _num_ids(rows)
            turns += len(rows)
            thought += PAUSE_NS + sum(row.think_ns for row in rows)


def _joined(
    rows: list[TraceRequest], user: int, turns: int, start_ns: int, first_id: int
) -> Iterator[TraceRequest]:
    """A session as the continuation of a user's, who has had so many turns; its block ids from `first_id` on."""
    begun_ns = rows[0].arrival_ns
    lowest = _lowest_id(rows)
    for row in rows:
        later_ns = row.arrival_ns - begun_ns
        after, think_ns = row.after + turns, row.think_ns
        if row.after == ROOT:
            after = turns - 1 if turns else ROOT
            think_ns = PAUSE_NS + later_ns if turns else 0
        ids = row.hash_ids
        if ids:
            moved = np.frombuffer(ids, np.int64) + (first_id - lowest)
            ids = array("q", moved.tobytes())
        yield replace(
            row,
            arrival_ns=start_ns + later_ns,
            session=user,
            turn=row.turn + turns,
            after=after,
            think_ns=think_ns,
            hash_ids=ids,
        )


def _with_small_ids(rows: list[TraceRequest]) -> list[TraceRequest]:
    """The session, its block ids numbered anew where they spread so widely that those of many sessions side by side would not fit 64 bits."""
    if _num_ids(rows) <= MOST_IDS:
        return rows
    small: dict[int, int] = {}
    return [
        replace(row, hash_ids=array("q", [small.setdefault(i, len(small)) for i in row.hash_ids]))
        for row in rows
    ]


def _lowest_id(rows: Iterable[TraceRequest]) -> int:
    return min((min(row.hash_ids) for row in rows if row.hash_ids), default=0)


def _num_ids(rows: Iterable[TraceRequest]) -> int:
    highest = max((max(row.hash_ids) for row in rows if row.hash_ids), default=-1)
    return highest + 1 - _lowest_id(rows)
