"""Whether a run of the load client kept its promises: each request judged as a replay's are, from when it was due, seen by the client.

A request that failed keeps nothing, and neither does one that an interrupted run never sent. What is due after the end that `--duration-s` asks for is no
part of the run and is not judged.
"""

from typing import Final

import numpy as np

from traces.client.figures import BenchCounts, BenchReport, Compared
from traces.client.outcomes import Outcomes, State
from traces.judge import NEVER, Goodput, Judge, Times
from traces.report import numbers
from traces.slo import Slo

GOOD_RATE: Final = "good requests"
GOOD_SHARE: Final = "good share"


def never_sent_of(counts: BenchCounts) -> int:
    """Of those that were never sent, the ones that count as not good."""
    return counts.never_sent if counts.interrupted else 0


def judge_outcomes(outcomes: Outcomes, never_sent: int, end_ns: int) -> Judge:
    """Looks at a run that is over; `never_sent` requests are added, lost and of several tokens."""
    state = np.frombuffer(outcomes.state, np.int8)
    counted, asked = outcomes.ints("output"), outcomes.ints("asked_output")
    never = np.full(never_sent, NEVER, np.int64)
    return Judge(
        Times(
            arrival_ns=np.concatenate([outcomes.ints("due_ns"), np.zeros(never_sent, np.int64)]),
            first_ns=np.concatenate([outcomes.ints("first_ns"), never]),
            end_ns=np.concatenate([outcomes.ints("last_ns"), never]),
            num_output=np.concatenate(
                [np.where(counted > 0, counted, asked), np.full(never_sent, 2, np.int64)]
            ),
            is_open=np.concatenate([state == State.OPEN, np.zeros(never_sent, np.bool_)]),
            is_lost=np.concatenate([state == State.FAILED, np.ones(never_sent, np.bool_)]),
        ),
        end_ns,
    )


def goodput_of(outcomes: Outcomes, counts: BenchCounts, slo: Slo, end_ns: int) -> Goodput:
    """How the promises were kept, in requests a second over the measured time."""
    judge = judge_outcomes(outcomes, never_sent_of(counts), end_ns)
    return judge.goodput(slo, end_ns / 1e9)


def judged_text(report: BenchReport) -> str:
    """Of which requests the share is, as a sentence."""
    counts, kept = report.requests, report.goodput
    assert kept is not None
    failed, never = sum(counts.failed.values()), never_sent_of(counts)
    undecided = counts.submitted + never - kept.judged
    text = f"the {counts.submitted:,} sent"
    if never:
        text += f" + {never:,} read and never sent"
    if undecided:
        text += f" − {undecided:,} open at the end and not late yet"
    text = f"Judged: {text}{f' = {kept.judged:,}' if never or undecided else ''}"
    lost = [f"{n:,} that {what}" for n, what in ((failed, "failed"), (never, "never went")) if n]
    if lost:
        text += f"; {' and '.join(lost)} {'keeps' if failed + never == 1 else 'keep'} nothing"
    later = counts.never_sent - never
    if later:
        text += f"; {later:,} due after the end {'is' if later == 1 else 'are'} not judged"
    return f"{text}."


def compare(kept: Goodput | None, other: Goodput | None) -> tuple[list[Compared], str | None]:
    """The two side by side where both were judged by the same limits; else why not, where this run was judged."""
    if kept is None:
        return [], None
    if other is None:
        return [], "The other figures were made without --slo: they have no goodput."
    if any(kept.slo.limit_ns(m) != other.slo.limit_ns(m) for m in {*kept.within, *other.within}):
        return [], f"The other requests were judged by {other.slo}: their goodput is another."
    pairs = (
        (GOOD_RATE, "/s", kept.good_per_s, other.good_per_s),
        (GOOD_SHARE, "share", kept.good_share, other.good_share),
    )
    return [
        Compared(
            name=name,
            unit=unit,
            measured=here,
            predicted=there,
            error=there / here - 1 if here and there is not None else None,
        )
        for name, unit, here, there in pairs
    ], None


def shown(figure: Compared, value: float | None) -> str:
    """A figure of a comparison, for people."""
    match figure.unit:
        case "ms":
            return numbers.ms(value)
        case "share":
            return numbers.percent(value)
        case _:
            return numbers.amount(value)
