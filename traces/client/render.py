"""A run of the load client for a terminal. Knows the report and nothing of how it came about."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from traces.client.against import told
from traces.client.figures import BenchReport
from traces.client.findings import cached_text
from traces.client.promises import judged_text, shown
from traces.client.sent import never_text, read_text, shaped_text
from traces.report import numbers
from traces.report.promises import goodput_text
from traces.stats import Spread


def render(report: BenchReport) -> Group:
    """The summary."""
    parts: list[Table | Text] = [_facts(report), Text(""), _latencies(report)]
    if report.against is not None:
        parts += [Text(""), _comparison(report)]
        if answers := told(report.against):
            parts.append(Text(answers, style="yellow"))
        if report.against.goodput_apart is not None:
            parts.append(Text(report.against.goodput_apart, style="yellow"))
    parts += [
        Text(""),
        Text(f"trace {report.trace.sha256[:12]}", style="dim"),
    ]
    return Group(*parts)


def _facts(report: BenchReport) -> Table:
    counts, speed, honesty = report.requests, report.throughput, report.honesty
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    target = report.target
    server = f" ({target.server})" if target.server else ""
    table.add_row("server", f"{target.model} at {target.url}{server}")
    num_bad = sum(report.trace.bad.values())
    bad = f", {numbers.counted(num_bad, 'bad row')}" if num_bad else ""
    table.add_row(
        "trace",
        f"{report.trace.name} ({report.trace.format}): {read_text(report)}{bad}",
    )
    failed = ", ".join(f"{n:,} {kind}" for kind, n in counts.failed.items())
    never = f", {told}" if (told := never_text(report)) else ""
    shaped = f"; {told}" if (told := shaped_text(report)) else ""
    table.add_row(
        "requests",
        f"{counts.submitted:,} sent: {counts.done:,} done, {sum(counts.failed.values()):,} failed{f' ({failed})' if failed else ''}, "
        f"{counts.unfinished:,} unfinished{never}{'; interrupted' if counts.interrupted else ''}{shaped}",
    )
    for kind, message in counts.said.items():
        table.add_row("", Text(f"{kind}: {message}", style="red"))
    table.add_row(
        "throughput",
        f"{speed.output_tokens_per_s:,.1f} output tokens/s, {speed.prompt_tokens_per_s:,.1f} prompt tokens/s, "
        f"{speed.requests_per_s:,.2f} requests/s over {speed.measured_s:,.1f} s; {speed.mean_open:.1f} open on average, {speed.most_open:,} at most",
    )
    if report.cached is not None:
        table.add_row("cached", cached_text(report.cached))
    if report.goodput is not None:
        table.add_row("goodput", goodput_text(report.goodput))
        table.add_row("", judged_text(report))
    late = honesty.late_ms
    table.add_row(
        "sent late",
        f"p50 {numbers.ms(late.p50)}, p99 {numbers.ms(late.p99)}, max {numbers.ms(late.max)}; {honesty.late_over_10ms:,} by more than 10 ms",
    )
    if honesty.prompt_error is not None and honesty.output_error is not None:
        table.add_row(
            "lengths",
            f"prompts {honesty.prompt_error:+.2%} of what the trace asks, answers {honesty.output_error:+.2%}",
        )
    return table


def _latencies(report: BenchReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("latency")
    for column in ("p50", "p90", "p99", "mean", "max", "samples"):
        table.add_column(column, justify="right")
    rows: tuple[tuple[str, Spread], ...] = (
        ("TTFT", report.ttft_ms), ("TPOT", report.tpot_ms), ("end to end", report.e2e_ms),
    )  # fmt: skip
    for name, s in rows:
        figures = [numbers.ms(x) for x in (s.p50, s.p90, s.p99, s.mean, s.max)]
        table.add_row(name, *figures, f"{s.count:,}")
    return table


def _comparison(report: BenchReport) -> Table:
    against = report.against
    assert against is not None
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(
        (f"against {against.title}", "measured", against.label, "difference")
    ):
        table.add_column(column, justify="right" if i else "left")
    for f in against.figures:
        table.add_row(
            f.name,
            shown(f, f.measured),
            shown(f, f.predicted),
            numbers.NONE if f.error is None else f"{f.error:+.1%}",
        )
    return table
