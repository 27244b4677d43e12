"""A run of the load client as a document: findings, time, latencies with the prediction laid over them, requests, everything that was assumed."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from traces.client.against import told
from traces.client.figures import BenchFinding, BenchReport
from traces.client.measure import times_of
from traces.client.outcomes import Outcomes, State
from traces.client.promises import shown
from traces.client.sent import never_text, shaped_text
from traces.report import numbers, svg
from traces.report.document import (
    Charts,
    Column,
    Document,
    Fact,
    Facts,
    Finding,
    Line,
    OverTime,
    Section,
    Strip,
    Table,
    Words,
)
from traces.report.facts import facts_of
from traces.report.latency import MEANINGS, latency_charts, latency_table
from traces.report.rows import worth_reading

HEADER: Final = (
    "request", "line", "due_s", "late_ms", "asked_prompt_tokens", "asked_output_tokens", "prompt_tokens", "output_tokens", "state", "why",
    "ttft_ms", "tpot_ms", "e2e_ms",
)  # fmt: skip
_STATES: Final = {State.OPEN: "unfinished", State.DONE: "done", State.FAILED: "failed"}


def document(report: BenchReport, outcomes: Outcomes, files: list[str], csv_name: str) -> Document:
    """The page of a run; `files` hold the same figures, `csv_name` all requests."""
    sections = [_over_time(report)] if report.over_time.end_s else []
    sections += [_latency(report), _requests(report, outcomes, csv_name), _assumptions(report)]
    return Document(
        title=f"Load test of {report.target.model}",
        subtitle=f"{report.target.url}; {numbers.counted(report.requests.submitted, 'request')} of {report.trace.name} over {numbers.seconds(report.throughput.measured_s)}",
        findings=[_finding(finding, report) for finding in report.findings],
        sections=sections,
        footer=[f"The same figures: {', '.join(files)}", f"trace {report.trace.sha256}"],
    )


def _finding(text: BenchFinding, report: BenchReport) -> Finding:
    return Finding(
        figure=text.figure,
        sentence=text.sentence,
        source=text.source,
        warm=text.warm,
        picture=_picture(text.code, report),
    )


def _picture(code: str, report: BenchReport) -> str:
    counts, series = report.requests, report.over_time
    match code:
        case "lost":
            good = counts.done / counts.submitted
            return svg.bars([(1 - good, "warm"), (good, "used")])
        case "late":
            late = report.honesty.late_over_10ms / counts.submitted
            return svg.bars([(late, "warm"), (1 - late, "used")])
        case "goodput":
            share = (report.goodput.good_share if report.goodput is not None else None) or 0.0
            return svg.bars([(share, "used"), (1 - share, "warm")])
        case "against":
            assert report.against is not None
            ttft = {f.name: f for f in report.against.figures}["TTFT p50"]
            pair = [
                (name, value)
                for name, value in (
                    ("measured", ttft.measured),
                    (report.against.label, ttft.predicted),
                )
                if value
            ]
            most = max((value for _, value in pair), default=1.0)
            looks = {"measured": "used", report.against.label: "second"}
            return svg.compared(
                [(f"{name} {numbers.ms(value)}", value / most, looks[name]) for name, value in pair]
            )
        case "cached":
            share = report.cached.share if report.cached is not None else 0.0
            return svg.bars([(share, "used"), (1 - share, "unused")])
        case "latency":
            t = report.ttft_ms
            named = (("p50", t.p50), ("p90", t.p90), ("p99", t.p99))
            return svg.dots([(name, value) for name, value in named if value is not None])
        case "on_time":
            t = report.honesty.late_ms
            named = (("p50", t.p50), ("p99", t.p99), ("max", t.max))
            return svg.dots([(name, value) for name, value in named if value is not None])
        case _:
            values = series.events_per_s
            return svg.spark(series.end_s, values, max(values), "used") if values else ""


def _over_time(report: BenchReport) -> Section:
    series = report.over_time

    def strip(title: str, unit: str, values: list[float], look: str = "used") -> Strip:
        return Strip(
            title=title, unit=unit, lines=[Line(label=title.lower(), values=values, look=look)]
        )

    strips = [
        strip("Open", "requests", series.open_requests),
        strip("Text events", "a second", series.events_per_s),
        strip("Sent", "a second", series.sent_per_s),
        strip("Done", "a second", series.done_per_s),
    ]
    if any(series.failed_per_s):
        strips.append(strip("Failed", "a second", series.failed_per_s, "warm"))
    return Section(
        name="time",
        title="Over time",
        lead=f"Means over {numbers.counted(len(series.end_s), 'bin')} of {numbers.seconds(series.end_s[0])}, seen by the client.",
        parts=[OverTime(name="over-time", end_s=series.end_s, strips=strips)],
    )


def _latency(report: BenchReport) -> Section:
    spreads = {name: getattr(report, name) for _, _, name in MEANINGS}
    values = {name: getattr(report.distributions, name) for _, _, name in MEANINGS}
    other, tables = None, [latency_table(spreads)]
    against = report.against
    if against is not None:
        other = (against.label, against.distributions["share"], against.distributions)
        tables.append(_comparison(report))
    charts = latency_charts(spreads, report.distributions.share, values, "measured", other)
    lead = (
        "How many requests were done within a time, counted by the client from when each was due."
    )
    if against is not None:
        lead += f" Dashed: {against.title}, {against.label}."
    return Section(
        name="latency",
        title="Latency",
        lead=lead,
        parts=[
            *([Charts(name="latency-charts", charts=charts, by_y=True)] if charts else []),
            *tables,
        ],
    )


def _comparison(report: BenchReport) -> Table:
    against = report.against
    assert against is not None
    rows = []
    for f in against.figures:
        error = numbers.NONE if f.error is None else f"{100 * f.error:+.1f} %"
        rows.append([f.name, shown(f, f.measured), shown(f, f.predicted), error])
    heads = ("measured", against.label, "difference")
    made = (
        f"The other figures were made with {', '.join(against.differences)}."
        if against.differences
        else ""
    )
    return Table(
        name="comparison",
        columns=[Column(title="", text=True), *(Column(title=head) for head in heads)],
        rows=rows,
        note=" ".join(filter(None, (made, told(against), against.goodput_apart))),
    )


def _requests(report: BenchReport, outcomes: Outcomes, csv_name: str) -> Section:
    counts = report.requests
    failed = ", ".join(f"{n:,} {kind}" for kind, n in counts.failed.items())
    lead = (
        f"{counts.submitted:,} sent = {counts.done:,} done + {sum(counts.failed.values()):,} failed{f' ({failed})' if failed else ''} + "
        f"{counts.unfinished:,} unfinished."
    )
    told = [text for text in (never_text(report), shaped_text(report)) if text]
    if told:
        lead += f" Of {numbers.counted(report.trace.requests, 'request')} read: {'; '.join(told)}."
    said = [f"{kind}: {message}" for kind, message in counts.said.items()]
    parts: list[Words | Table] = [Words(lines=said)] if said else []
    parts.append(_table(outcomes, csv_name))
    return Section(name="requests", title="Requests", lead=lead, parts=list(parts))


def _table(outcomes: Outcomes, csv_name: str) -> Table:
    times = times_of(outcomes)
    state = np.frombuffer(outcomes.state, np.int8)
    chosen, note = worth_reading(state != State.DONE, (times.ttft, times.tpot, times.e2e), csv_name)

    def ms(value: float) -> str:
        return numbers.NONE if np.isnan(value) else f"{value:,.1f}"

    rows = []
    for i in chosen.tolist():
        ended = _STATES[State(outcomes.state[i])]
        why = outcomes.why.get(i)
        rows.append([
            str(i), f"{outcomes.due_ns[i] / 1e9:,.3f}", ms(float(times.late[i])), _tokens(outcomes.prompt[i], outcomes.asked_prompt[i]),
            _tokens(outcomes.output[i], outcomes.asked_output[i]), ms(float(times.ttft[i])), ms(float(times.tpot[i])), ms(float(times.e2e[i])),
            f"{ended}: {why}" if why else ended,
        ])  # fmt: skip
    columns = [
        Column(title="Request", help="Number in order of sending"),
        Column(title="Due, s"),
        Column(title="Late, ms", help="From due to sent"),
        Column(title="Prompt", help="Tokens as the server counted, else as asked"),
        Column(title="Output", help="Tokens as the server counted, else as asked"),
        Column(title="TTFT, ms", help="Due to first token"),
        Column(title="TPOT, ms", help="Mean gap between tokens"),
        Column(title="End to end, ms", help="Due to last token"),
        Column(title="Ended", text=True),
    ]
    return Table(name="request-table", columns=columns, rows=rows, note=note, tools=True)


def _tokens(counted: int, asked: int) -> str:
    return f"{counted if counted >= 0 else asked:,}"


def request_lines(outcomes: Outcomes) -> Iterator[str]:
    """All requests as CSV, the header first."""
    yield ",".join(HEADER)
    times = times_of(outcomes)
    for i in range(len(outcomes)):
        shown = ",".join(
            "" if np.isnan(t[i]) else f"{t[i]:.6f}" for t in (times.ttft, times.tpot, times.e2e)
        )
        counted = ",".join(
            "" if n < 0 else str(n) for n in (outcomes.prompt[i], outcomes.output[i])
        )
        yield (
            f"{i},{outcomes.line[i]},{outcomes.due_ns[i] / 1e9:.9f},{times.late[i]:.6f},{outcomes.asked_prompt[i]},{outcomes.asked_output[i]},"
            f"{counted},{_STATES[State(outcomes.state[i])]},{outcomes.why.get(i, '')},{shown}"
        )


def _assumptions(report: BenchReport) -> Section:
    target = report.target
    exact = target.tokens_per_word == 1
    honesty = report.honesty
    words = [
        "Requests are sent when the trace says, whatever the server does; latencies count from then, so a stall delays every request that was due in it.",
        f"Prompts are made of common words, {target.tokens_per_word:.3g} tokens each by {target.measured_by}"
        f"{', so lengths are exact' if exact else ', so lengths are near what the trace says'}; prompts that share blocks in the trace begin alike.",
        "The first token is the first event with text, the last token the last one; a server that sends several tokens in one event makes them arrive together.",
    ]
    if not report.settings.ignore_eos:
        words.append(
            "Answers may end before the trace's length, since the server was not asked to go on."
        )
    if honesty.without_usage:
        words.append(
            f"{honesty.without_usage:,} answers came without a count of tokens; theirs is taken to be what was asked for."
        )
    lengths = []
    if honesty.prompt_error is not None and honesty.output_error is not None:
        lengths = [
            Fact(
                name="prompt tokens, counted over asked",
                value=f"{100 * honesty.prompt_error:+.2f} %",
            ),
            Fact(
                name="output tokens, counted over asked",
                value=f"{100 * honesty.output_error:+.2f} %",
            ),
        ]
    return Section(
        name="assumptions",
        title="Assumptions",
        lead="Everything that decides these figures beside the trace.",
        parts=[
            Words(lines=words),
            Facts(title="Server", facts=[*facts_of(target), *lengths]),
            Facts(
                title="Client",
                facts=[
                    *facts_of(report.settings),
                    Fact(name="connections", value=f"{report.throughput.connections:,}"),
                ],
            ),
            Facts(title="Workload", facts=facts_of(report.settings.shaping)),
        ],
    )
