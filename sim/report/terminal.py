"""A replay's report for a terminal: rich tables and block-character charts. Knows the report and nothing of how it came about."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from sim.fitted import Fit
from sim.report.figures import ReplayReport, Resolved
from sim.report.memory_table import memory_line
from traces.render import bad_rows
from traces.report import numbers
from traces.report.promises import goodput_text
from traces.stats import Spread

_LABEL_COLUMNS: Final = 52
"""What the columns left of a chart take."""
_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"


def resample(values: Sequence[float], columns: int) -> list[float]:
    """Means of `columns` equal stretches of a series, or the series itself where it is shorter."""
    if len(values) <= columns:
        return list(values)
    means = []
    for i in range(columns):
        part = values[i * len(values) // columns : (i + 1) * len(values) // columns]
        means.append(sum(part) / len(part))
    return means


def sparkline(values: Sequence[float], top: float) -> str:
    """One character a value, from empty at 0 to a full block at `top`; anything above 0 shows."""
    bars = []
    for value in values:
        level = round(8 * value / top) if top > 0 else 0
        bars.append(_EIGHTHS[min(8, max(level, 1 if value > 0 else 0))])
    return "".join(bars)


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 1000:
        return f"{value:.1f} ms"
    return f"{value / 1000:,.2f} s"


def _latency_table(rows: Sequence[tuple[str, Spread]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("latency")
    for column in ("p50", "p90", "p99", "mean", "max", "samples"):
        table.add_column(column, justify="right")
    for name, d in rows:
        figures = [_ms(x) for x in (d.p50, d.p90, d.p99, d.mean, d.max)]
        table.add_row(name, *figures, f"{d.count:,}")
    return table


def _memory_table(report: ReplayReport, width: int) -> Table:
    memory, series, batch = report.memory, report.over_time, report.batch
    pool = memory.pool_tokens
    columns = min(100, max(10, width - _LABEL_COLUMNS))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("KV memory")
    table.add_column("share", justify="right")
    table.add_column("mean", justify="right")
    table.add_column(f"0 to {report.throughput.simulated_s:,.0f} s", no_wrap=True)
    categories = (
        ("used", memory.mean_used_tokens, series.used_tokens, "green"),
        ("allocated, unused", memory.mean_unused_tokens, series.unused_tokens, "yellow"),
        ("cached", memory.mean_cached_tokens, series.cached_tokens, "cyan"),
        ("free", memory.mean_free_tokens, series.free_tokens, "blue"),
    )
    for name, mean, values, colour in categories:
        chart = Text(sparkline(resample(values, columns), pool), style=colour)
        table.add_row(name, f"{mean / pool:.1%}", f"{mean:,.0f}", chart)
    length = numbers.seconds(float(f"{series.end_s[0]:.2g}")) if series.end_s else ""
    for name, values in (("running", series.running), ("waiting", series.waiting)):
        top = max(values, default=0.0)
        mean = batch.mean_running if name == "running" else batch.mean_waiting
        chart = Text(sparkline(resample(values, columns), top), style="magenta")
        table.add_row(f"{name}, {length} means to {top:,.1f}", "", f"{mean:,.1f}", chart)
    return table


def _machine(config: Resolved) -> str:
    """What prices the steps."""
    if config.fit is not None:
        return f"steps as those of {config.fit.model} in the recording {config.fit.recording}"
    if config.table is not None:
        return f"steps as in the table {config.table.file}"
    settings = config.settings
    devices = f"{settings.tensor_parallel} " if settings.tensor_parallel > 1 else ""
    return (
        f"{config.model.name} in {settings.dtype} on {devices}{config.hardware.name}, "
        f"{config.cost_model} cost model"
    )


def _fleet(config: Resolved) -> str:
    """How many such machines there are and who sends to them; nothing of a single one."""
    replicas = config.settings.replicas
    return f" a replica; {replicas:,} replicas, {config.settings.router}" if replicas > 1 else ""


def _fit(fit: Fit) -> str:
    return (
        f"{numbers.counted(fit.num_steps, 'step')}; over steps not seen, {fit.folds} folds: a step's time off by {fit.error_share:.1%} "
        f"on average, that of all by {fit.total_error_share:+.1%}; {fit.unusual_steps_share:.1%} stand in slow stretches "
        f"and were set aside, with {fit.unusual_time_share:.1%} of the time"
    )


def _facts(report: ReplayReport) -> Table:
    config, trace, requests = report.config, report.trace, report.requests
    speed, batch, memory, pool = report.throughput, report.batch, report.memory, report.config.pool
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row(
        "machine",
        f"{_machine(config)}; blocks of {memory.block_size} tokens, {memory.pool_blocks:,} of them "
        f"({numbers.gib(pool.pool_bytes)}{', given' if pool.given else ''}){_fleet(config)}",
    )
    if config.fit is not None:
        table.add_row("fit", _fit(config.fit))
    table.add_row(
        "trace",
        f"{trace.name} ({trace.format}): {numbers.counted(trace.rows, 'row')}; first arrival {trace.first_arrival_s:g} s, "
        f"last {trace.last_arrival_s:,.3f} s, span {trace.span_s:,.3f} s",
    )
    rejected = ", ".join(f"{count:,} {code}" for code, count in requests.rejected.items())
    failed = f", {requests.failed:,} failed" if requests.failed else ""
    never = f"; {requests.never_sent:,} never sent" if requests.never_sent else ""
    table.add_row(
        "requests",
        f"{requests.submitted:,} submitted: {requests.done:,} done, {sum(requests.rejected.values()):,} "
        f"rejected{f' ({rejected})' if rejected else ''}{failed}, {requests.unfinished:,} unfinished{never}",
    )
    table.add_row(
        "throughput",
        f"{speed.output_tokens_per_s:,.1f} output tokens/s, {speed.prompt_tokens_per_s:,.1f} prompt tokens/s, "
        f"{speed.requests_per_s:,.2f} requests/s over {speed.simulated_s:,.1f} s; busy {speed.busy_share:.1%}",
    )
    table.add_row(
        "batch",
        f"mean {batch.mean_running:.1f} running, {batch.mean_waiting:.1f} waiting; largest step "
        f"{numbers.counted(batch.max, 'sequence')}; {numbers.counted(speed.steps, 'step')}; {numbers.counted(batch.preemptions, 'preemption')}",
    )
    if report.goodput is not None:
        table.add_row("goodput", goodput_text(report.goodput))
    share = memory.used_share_of_allocated
    table.add_row(
        "KV pool",
        f"peak {memory.peak_blocks:,} of {memory.pool_blocks:,} blocks{' of a replica' if config.settings.replicas > 1 else ''}; "
        + (
            f"{share:.1%} of allocated memory holds token states" if share is not None else "unused"
        ),
    )
    table.add_row(
        "in hindsight", f"of the pool over the whole run: {memory_line(memory.hindsight)}"
    )
    return table


def render(report: ReplayReport, width: int) -> Group:
    """The summary, for a terminal of `width` columns."""
    latency = _latency_table(
        (("TTFT", report.ttft_ms), ("TPOT", report.tpot_ms), ("end to end", report.e2e_ms))
    )
    blank = Text("")
    trace = report.trace
    return Group(
        *bad_rows(trace.bad_rows, sum(trace.bad.values()), trace.rows), _facts(report), blank, latency, blank, _memory_table(report, width), blank,
        Text(f"config {report.config_sha256[:12]}, trace {report.trace.sha256[:12]}", style="dim"),
    )  # fmt: skip
