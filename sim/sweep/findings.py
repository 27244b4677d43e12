"""A sweep in plain sentences: what failed, what moves a figure, where its best and worst values are. Knows the result and computes nothing new but ratios."""

from collections.abc import Callable
from typing import Final, NamedTuple

from sim.report.figures import FindingText
from sim.sweep.axes import Axis, show
from sim.sweep.effects import extremes, figure_of, place_of, strongest
from sim.sweep.result import GOOD, GOOD_SHARE, SweepPoint, SweepResult, good
from traces.report import numbers
from traces.report.promises import limits_text

MOST: Final = 6
SAME: Final = 1.02
"""A ratio below it is no difference to speak of."""


class Shown(NamedTuple):
    """A figure as reports show it."""

    figure: str
    title: str
    meaning: str
    unit: str
    """`ms`, `%`, `USD`, or words."""
    more_is_better: bool

    def text(self, value: float | None) -> str:
        """The value with its unit."""
        if value is None:
            return numbers.NONE
        if self.unit == "ms":
            return numbers.ms(value)
        if self.unit == "%":
            return numbers.percent(value)
        return f"${value:,.2f}" if self.unit == "USD" else numbers.amount(value)


METRICS: Final = (
    Shown("ttft_p99_ms", "TTFT p99", "time to first token that 99 % of the requests stay within", "ms", False),
    Shown("tpot_p99_ms", "TPOT p99", "mean time between tokens that 99 % of the requests stay within", "ms", False),
    Shown("output_tokens_per_s", "Output tokens", "a second, of all replicas", "tokens/s", True),
    Shown("busy_share", "Busy", "share of the time in which a step runs", "%", False),
    Shown("usd_per_million_output_tokens", "Price", "US dollars for a million output tokens", "USD", False),
    Shown("preemptions", "Preemptions", "times that a running request had to give up its memory", "times", False),
)  # fmt: skip
"""What charts and sentences are about."""


def shown_of(result: SweepResult) -> list[Shown]:
    """The metrics that some point has above 0."""
    return [m for m in METRICS if any(figure_of(p, m.figure) for p in result.points)]


def goods(result: SweepResult) -> list[Shown]:
    """Requests a second within all limits at once, and where there are several within each."""
    if result.slo is None:
        return []
    shown = [
        Shown(GOOD, "Good / s", "requests a second that keep every limit at once", "requests/s", True),
        Shown(GOOD_SHARE, "Good", "share of the requests that keep every limit at once", "%", True),
    ]  # fmt: skip
    if len(result.slo.metrics) > 1:
        for metric in result.slo.metrics:
            meaning = f"requests a second within the limit on {metric.upper()}, whatever their other times are"
            shown.append(
                Shown(good(metric), f"{metric.upper()} kept / s", meaning, "requests/s", True)
            )
    return shown


def findings(result: SweepResult) -> list[FindingText]:
    """At most `MOST`, what went wrong first."""
    finders: tuple[Callable[[SweepResult], list[FindingText]], ...] = (
        _failed, _lost, _moves, _still, _prices, _goodput, _fastest,
    )  # fmt: skip
    return [finding for find in finders for finding in find(result)][:MOST]


def points_text(count: int) -> str:
    """So many points."""
    return f"{count:,} point{'' if count == 1 else 's'}"


def _failed(result: SweepResult) -> list[FindingText]:
    failed = [point for point in result.points if point.error is not None]
    if not failed:
        return []
    first = failed[0]
    place = place_of(first.settings) or "the only point"
    of = f"{len(failed):,} of {points_text(len(result.points))}"
    verb = "has" if len(failed) == 1 else "have"
    return [
        FindingText(
            code="failed",
            figure=f"{len(failed):,} failed",
            sentence=f"{of} {verb} no figures; at {place}: {first.error}",
            source="Settings that do not go together, or a replay that could not be run; the table has each reason.",
            warm=True,
        )
    ]


def _lost(result: SweepResult) -> list[FindingText]:
    def lost(point: SweepPoint) -> float:
        names = ("rejected", "failed", "unfinished", "never_sent")
        return sum(figure_of(point, name) or 0.0 for name in names)

    losing = [point for point in result.points if lost(point)]
    if not losing:
        return []
    worst = max(losing, key=lost)
    return [
        FindingText(
            code="lost",
            figure=f"{lost(worst):,.0f} lost",
            sentence=(
                f"At {len(losing):,} of {points_text(len(result.points))} requests were rejected or did not end; most of them at "
                f"{_at(worst)}: {lost(worst):,.0f} of {figure_of(worst, 'submitted') or 0:,.0f}."
            ),
            source="Counted; latencies are of requests that are done.",
            warm=True,
        )
    ]


def _moves(result: SweepResult) -> list[FindingText]:
    """For each latency the axis that moves it most."""
    made = []
    for metric in METRICS[:2]:
        effects = strongest(result, metric.figure)
        ends = extremes(result, metric.figure)
        if not effects or effects[0][0] < SAME or ends is None:
            continue
        (size, axis), low, high = effects[0], *ends
        most = f"{axis.name} moves {metric.title} most, {numbers.times(size)} between its best and its worst value"
        if len(effects) > 1:
            most += f"; {_and([f'{other.name} {numbers.times(by)}' for by, other in effects[1:4]])}"
        made.append(
            FindingText(
                code=metric.figure,
                figure=numbers.times(size),
                sentence=(
                    f"{most}. It lies between {metric.text(figure_of(low, metric.figure))} at {_at(low)} and "
                    f"{metric.text(figure_of(high, metric.figure))} at {_at(high)}."
                ),
                source=f"{metric.title}: {metric.meaning}. Largest over smallest value along an axis, in the middle of all combinations of the others.",
            )
        )
    return made


def _still(result: SweepResult) -> list[FindingText]:
    """Axes that hardly move anything."""
    still: list[Axis] = []
    for axis in result.axes:
        sizes = [
            size
            for metric in METRICS[:3]
            for size, other in strongest(result, metric.figure)
            if other is axis
        ]
        if len(axis.values) > 1 and sizes and max(sizes) < SAME:
            still.append(axis)
    if not still:
        return []
    names = _and([f"{axis.name} ({', '.join(map(show, axis.values[:6]))})" for axis in still])
    return [
        FindingText(
            code="still",
            figure="no effect",
            sentence=f"{names} moves neither latency nor throughput by {numbers.percent(SAME - 1)} on this trace.",
            source="TTFT p99, TPOT p99 and output tokens a second along the axis, in the middle of all combinations of the others.",
        )
    ]


def _prices(result: SweepResult) -> list[FindingText]:
    ends = extremes(result, "usd_per_million_output_tokens")
    if ends is None:
        return []
    low, high = (figure_of(point, "usd_per_million_output_tokens") or 0.0 for point in ends)
    if not low or high / low < SAME:
        return []
    latency = figure_of(ends[0], "ttft_p99_ms")
    return [
        FindingText(
            code="usd_per_million_output_tokens",
            figure=f"${low:,.2f}",
            sentence=(
                f"A million output tokens costs from ${low:,.2f} at {_at(ends[0])} to ${high:,.2f} at {_at(ends[1])}; at the cheapest, TTFT p99 is "
                f"{numbers.ms(latency)}."
            ),
            source="All devices over the simulated time, idle ones included, at the listed prices.",
        )
    ]


def _goodput(result: SweepResult) -> list[FindingText]:
    ends = extremes(result, GOOD)
    if result.slo is None or ends is None:
        return []
    best = ends[1]
    rate, done = figure_of(best, GOOD) or 0.0, figure_of(best, "requests_per_s") or 0.0
    judged = [point.meets for point in result.points if point.meets is not None]
    several = " at once" if len(result.slo.metrics) > 1 else ""
    return [
        FindingText(
            code=GOOD,
            figure=f"{numbers.amount(rate)}/s",
            sentence=(
                f"At most {numbers.amount(rate)} requests a second keep {limits_text(result.slo)}{several}, at {_at(best)}, "
                f"where {numbers.amount(done)} a second are done. {sum(judged):,} of {points_text(len(judged))} "
                f"{'keeps' if sum(judged) == 1 else 'keep'} the promise {result.slo}."
            ),
            source="Each request judged by itself; one that was rejected keeps nothing.",
        )
    ]


def _fastest(result: SweepResult) -> list[FindingText]:
    ends = extremes(result, "output_tokens_per_s")
    if ends is None:
        return []
    low, high = (figure_of(point, "output_tokens_per_s") or 0.0 for point in ends)
    if len(result.points) > 1 and low and high / low < SAME:
        sentence = (
            f"Throughput is the same at every point, {numbers.amount(high)} output tokens a second: nowhere does more come than is served, so only "
            "latency tells the settings apart."
        )
    else:
        sentence = (
            f"Most output tokens a second are made at {_at(ends[1])}: {numbers.amount(high)}, "
            f"against {numbers.amount(low)} at {_at(ends[0])}."
        )
    return [
        FindingText(
            code="output_tokens_per_s",
            figure=f"{numbers.amount(high)} tokens/s",
            sentence=sentence,
            source="Tokens that were produced over the simulated time, to the last request's end.",
        )
    ]


def _at(point: SweepPoint) -> str:
    return place_of(point.settings) or "the only point"


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
