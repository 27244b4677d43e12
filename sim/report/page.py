"""A replay's report as a document: findings with their pictures, then time, maps, latencies, requests, and everything that was assumed."""

from sim.report.figures import FindingText, ReplayReport
from sim.report.memory_table import memory_table
from traces.report import numbers, svg
from traces.report.document import (
    Charts,
    Document,
    Fact,
    Facts,
    Finding,
    Line,
    Maps,
    Moment,
    OverTime,
    Section,
    Strip,
    Table,
    Words,
)
from traces.report.facts import facts_of, spread_text
from traces.report.latency import MEANINGS, latency_charts, latency_table


def document(
    report: ReplayReport, moments: list[Moment], requests: Table, files: list[str]
) -> Document:
    """The page of a replay.

    Args:
        report: The figures.
        moments: Block maps, in order of time.
        requests: The table of requests.
        files: Where the same figures lie as JSON and CSV.
    """
    config, trace = report.config, report.trace
    sections = [_over_time(report)] if report.over_time.end_s else []
    if moments:
        sections.append(
            Section(
                name="pool",
                title="The pool",
                lead="Each square is one frame of the KV pool, in physical order; its hue says which request holds it.",
                parts=[Maps(name="maps", moments=moments)],
            )
        )
    sections += [_latency(report), _requests(report, requests), _assumptions(report)]
    return Document(
        title=f"Replay of {trace.name}",
        subtitle=(
            f"{config.model.name} in {config.settings.dtype} on {_machines(report)}{config.hardware.name}, {config.cost_model} cost model; "
            f"{numbers.counted(report.memory.pool_blocks, 'block')} of {numbers.counted(report.memory.block_size, 'token')}; {numbers.counted(report.requests.submitted, 'request')} over "
            f"{numbers.seconds(trace.span_s)}"
        ),
        findings=[_finding(text, report) for text in report.findings],
        sections=sections,
        footer=[
            *(f"The same figures: {', '.join(files)}" for _ in files[:1]),
            f"config {report.config_sha256}",
            f"trace {report.trace.sha256}",
        ],
    )


def _machines(report: ReplayReport) -> str:
    settings = report.config.settings
    devices = settings.replicas * settings.tensor_parallel
    return f"{devices} × " if devices > 1 else ""


# -- findings ------------------------------------------------------------------------------------------------------


def _finding(text: FindingText, report: ReplayReport) -> Finding:
    return Finding(
        figure=text.figure,
        sentence=text.sentence,
        source=text.source,
        warm=text.warm,
        picture=_picture(text.code, report),
    )


def _picture(code: str, report: ReplayReport) -> str:
    memory, series, batch = report.memory, report.over_time, report.batch
    match code:
        case "lost":
            counts = report.requests
            total = counts.submitted + counts.never_sent
            return svg.bars(
                [((total - counts.done) / total, "warm"), (counts.done / total, "used")]
            )
        case "goodput":
            share = (report.goodput.good_share if report.goodput is not None else None) or 0.0
            return svg.bars([(share, "used"), (1 - share, "warm")])
        case "paging":
            held = (memory.mean_used_tokens + memory.mean_unused_tokens) / batch.mean_running
            most = report.lengths.total_tokens.max or 1.0
            return svg.compared(
                [
                    (f"reserved {most:,.0f}", 1.0, "unused"),
                    (f"paged {held:,.0f} tokens", held / most, "used"),
                ]
            )
        case "waste":
            allocated = memory.mean_used_tokens + memory.mean_unused_tokens
            return svg.bars(
                [
                    (memory.mean_used_tokens / allocated, "used"),
                    (memory.mean_unused_tokens / allocated, "warm"),
                ]
            )
        case "reservation":
            seen = memory.hindsight
            held = seen.unused + seen.rounding
            return svg.bars([(seen.token_states, "used"), (held, "warm"), (seen.free, "free")])
        case "latency":
            t = report.ttft_ms
            named = (("p50", t.p50), ("p90", t.p90), ("p99", t.p99))
            return svg.dots([(f"{name}", value) for name, value in named if value is not None])
        case "full" | "peak":
            held_tokens = [
                u + n for u, n in zip(series.used_tokens, series.unused_tokens, strict=True)
            ]
            return (
                svg.spark(series.end_s, held_tokens, memory.pool_tokens, "used")
                if series.end_s
                else ""
            )
        case "preemptions":
            counts_in_bins = [float(n) for n in series.preemptions]
            return svg.spark(series.end_s, counts_in_bins, max(counts_in_bins), "warm")
        case "prefixes":
            hit = memory.prefix_hit_share or 0.0
            return svg.bars([(hit, "cached"), (1 - hit, "used")])
        case "speed" | "cost":
            return (
                svg.spark(series.end_s, series.running, max(series.running), "used")
                if series.end_s
                else ""
            )
        case _:
            return ""


# -- sections ------------------------------------------------------------------------------------------------------


def _over_time(report: ReplayReport) -> Section:
    series, memory = report.over_time, report.memory
    strips = [
        Strip(
            title="KV memory",
            unit="tokens",
            stacked=True,
            top=float(memory.pool_tokens),
            lines=[
                Line(label="free", values=series.free_tokens, look="free"),
                Line(label="cached", values=series.cached_tokens, look="cached"),
                Line(label="allocated, unused", values=series.unused_tokens, look="unused"),
                Line(label="used", values=series.used_tokens, look="used"),
            ],
        ),
        Strip(
            title="Running",
            unit="sequences",
            lines=[Line(label="running", values=series.running, look="used")],
        ),
        Strip(
            title="Waiting",
            unit="requests",
            lines=[Line(label="waiting", values=series.waiting, look="used")],
        ),
    ]
    if report.batch.preemptions:
        per_bin = [float(n) for n in series.preemptions]
        strips.append(
            Strip(
                title="Preemptions",
                unit="in the bin",
                lines=[
                    Line(
                        label="preemptions",
                        values=per_bin,
                        look="warm",
                        rest=f"{report.batch.preemptions:,} in all",
                    )
                ],
            )
        )
    strips.append(
        Strip(
            title="Busy",
            unit="",
            share=True,
            lines=[Line(label="a step runs", values=series.busy, look="used")],
        )
    )
    bins = len(series.end_s)
    return Section(
        name="time",
        title="Over time",
        lead=f"Means over {numbers.counted(bins, 'bin')} of {numbers.seconds(series.end_s[0])}, of all replicas; at rest the mean over the whole run.",
        parts=[
            OverTime(name="over-time", end_s=series.end_s, strips=strips),
            memory_table(report.memory.hindsight),
        ],
    )


def _latency(report: ReplayReport) -> Section:
    spreads = {name: getattr(report, name) for _, _, name in MEANINGS}
    values = {name: getattr(report.distributions, name) for _, _, name in MEANINGS}
    charts = latency_charts(spreads, report.distributions.share, values, "replayed")
    return Section(
        name="latency",
        title="Latency",
        lead="How many requests were done within a time. Server side, of requests that are done.",
        parts=[
            *([Charts(name="latency-charts", charts=charts, by_y=True)] if charts else []),
            latency_table(spreads),
        ],
    )


def _requests(report: ReplayReport, requests: Table) -> Section:
    counts = report.requests
    rejected = ", ".join(f"{n:,} {code}" for code, n in counts.rejected.items())
    lead = (
        f"{counts.submitted:,} submitted = {counts.done:,} done + {sum(counts.rejected.values()):,} rejected"
        f"{f' ({rejected})' if rejected else ''} + {counts.failed:,} failed + {counts.unfinished:,} unfinished."
    )
    if counts.never_sent:
        lead += f" {counts.never_sent:,} more were never sent."
    bad = sum(report.trace.bad.values())
    if bad:
        reasons = ", ".join(f"{n:,} {code}" for code, n in report.trace.bad.items())
        lead += f" {numbers.counted(bad, 'row')} of the trace {'is no request' if bad == 1 else 'are no requests'} ({reasons})."
    return Section(name="requests", title="Requests", lead=lead, parts=[requests])


def _assumptions(report: ReplayReport) -> Section:
    config = report.config
    parts: list[Words | Facts] = [Words(lines=report.biases)]
    for title, struct in (
        ("Settings", config.settings),
        ("Derived", config),
        ("Workload", config.settings.shaping),
        ("Model", config.model),
        ("Hardware", config.hardware),
        ("KV pool", config.pool),
        (f"Cost model: {config.cost_model}", config.efficiency),
    ):
        parts.append(Facts(title=title, facts=facts_of(struct)))
    parts.append(
        Facts(
            title="Trace",
            facts=[
                Fact(name="file", value=f"{report.trace.name} ({report.trace.format})"),
                Fact(name="rows", value=f"{report.trace.rows:,}"),
                Fact(
                    name="first and last arrival",
                    value=f"{report.trace.first_arrival_s:g} s, {report.trace.last_arrival_s:,.3f} s",
                ),
                Fact(name="prompt tokens", value=spread_text(report.lengths.prompt_tokens)),
                Fact(name="output tokens", value=spread_text(report.lengths.output_tokens)),
            ],
        )
    )
    return Section(
        name="assumptions",
        title="Assumptions",
        lead="Everything that decides these figures beside the trace, nothing left to a default.",
        parts=list(parts),
    )
