"""The requests that a run and the report laid over it both answered: by the table of requests that lies beside that report. Prints nothing.

Rows of another run are matched by their line in the trace; those of a replay, which has none, by arrival and lengths. Of several alike
the first is matched to the first. A turn of a session is sent when its server is done, so a replay's has no match.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from traces.client.figures import LeftOut
from traces.client.measure import times_of
from traces.client.outcomes import Outcomes, State
from traces.stats import Spread, spread

KEPT_LEFT_OUT: Final = 100
"""This many of the requests that one side lacks are listed; all are counted."""
_ROUNDED_MS: Final = 0.001
"""Of times in a table."""
_TIMES: Final = ("ttft_ms", "tpot_ms", "e2e_ms")
_STATES: Final = {State.OPEN: "unfinished", State.DONE: "done", State.FAILED: "failed"}

Key = tuple[str, ...]
Floats = NDArray[np.float64]


class Rows(NamedTuple):
    """A report's table of requests."""

    keys: list[Key]
    states: list[str]
    """`done`, or another word and why."""
    times: dict[str, Floats]
    """Milliseconds by column; NaN: none."""


class Match(NamedTuple):
    """What both sides have, and what one lacks."""

    common: int
    left_out: int
    """Requests that one side answered, and the other did not."""
    listed: list[LeftOut]
    here: dict[str, Spread]
    """By `ttft_ms`, `tpot_ms` and `e2e_ms`."""
    there: dict[str, Spread]


def read_rows(report: Path, kind: str, e2e_ms: Spread) -> Rows | None:
    """The table beside a report, where `--html` puts it or in the report's own folder; None where none has the answers of the report.

    A folder may hold several reports and the table of the last. It is the report's own where end-to-end times are as many, and as long in the mean.
    """
    for folder in (report.with_name(f"{report.stem}-csv"), report.parent):
        try:
            with (folder / "requests.csv").open(encoding="utf-8", newline="") as file:
                rows = _read(csv.DictReader(file), kind)
        except (OSError, UnicodeDecodeError, csv.Error, KeyError, TypeError, ValueError):
            continue
        if _are_those_of(rows, e2e_ms):
            return rows
    return None


def _are_those_of(rows: Rows, e2e_ms: Spread) -> bool:
    done = np.array([state == "done" for state in rows.states], bool)
    times = rows.times["e2e_ms"][done]
    if len(times) != e2e_ms.count:
        return False
    mean = e2e_ms.mean or 0.0
    return not len(times) or bool(abs(times.mean() - mean) <= _ROUNDED_MS + 1e-9 * mean)


def _read(table: Iterable[dict[str, str]], kind: str) -> Rows:
    columns = ("line",) if kind == "bench" else ("arrival_s", "prompt_tokens", "output_tokens")
    keys, states = [], []
    times: dict[str, list[float]] = {name: [] for name in _TIMES}
    for row in table:
        key = tuple(row[column] for column in columns)
        keys.append((str(int(key[0])),) if kind == "bench" else key)
        states.append(_state(row["state"], row["why"]))
        for name, values in times.items():
            values.append(float(row[name] or "nan"))
    return Rows(list(_numbered(keys)), states, {name: np.array(times[name]) for name in times})


def _state(state: str, why: str | None) -> str:
    return f"{state}: {why}" if why else state


def _numbered(keys: Iterable[Key]) -> Iterator[Key]:
    """Each key with how often it came before, so that none is there twice."""
    seen: Counter[Key] = Counter()
    for key in keys:
        yield *key, str(seen[key])
        seen[key] += 1


def match(rows: Rows, kind: str, outcomes: Outcomes) -> Match:
    """The latencies of both sides over the requests that both answered."""
    keys = list(_numbered(_keys(outcomes, kind)))
    states = [_state(_STATES[State(s)], outcomes.why.get(i)) for i, s in enumerate(outcomes.state)]
    place = {key: i for i, key in enumerate(rows.keys)}
    mine: list[int] = []
    theirs: list[int] = []
    missing: list[LeftOut] = []
    matched = set()
    for i, key in enumerate(keys):
        j = place.get(key)
        if j is not None:
            matched.add(j)
        other = "not there" if j is None else rows.states[j]
        if j is not None and states[i] == other == "done":
            mine.append(i)
            theirs.append(j)
        elif "done" in (states[i], other):
            missing.append(LeftOut(line=outcomes.line[i], measured=states[i], predicted=other))
    alone = (j for j, state in enumerate(rows.states) if state == "done" and j not in matched)
    only_there = [
        LeftOut(
            line=int(rows.keys[j][0]) if kind == "bench" else None,
            measured="not there",
            predicted="done",
        )
        for j in alone
    ]
    times = times_of(outcomes)
    here = (times.ttft[mine], times.tpot[mine], times.e2e[mine])
    there = [rows.times[name][theirs] for name in _TIMES]
    return Match(
        common=len(mine),
        left_out=len(missing) + len(only_there),
        listed=list(chain(missing, only_there))[:KEPT_LEFT_OUT],
        here={name: spread(each[~np.isnan(each)]) for name, each in zip(_TIMES, here, strict=True)},
        there={
            name: spread(each[~np.isnan(each)]) for name, each in zip(_TIMES, there, strict=True)
        },
    )


def _keys(outcomes: Outcomes, kind: str) -> Iterator[Key]:
    if kind == "bench":
        yield from ((str(line),) for line in outcomes.line)
        return
    columns = (outcomes.due_ns, outcomes.asked_prompt, outcomes.asked_output)
    for due_ns, prompt, output in zip(*columns, strict=True):
        yield f"{due_ns / 1e9:.9f}", str(prompt), str(output)
