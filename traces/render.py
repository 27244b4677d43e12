"""Figures of a trace for a terminal. Knows the figures and nothing of how they came about."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from traces.report import numbers
from traces.reuse import PrefixReuse
from traces.schema import BadRow
from traces.servegen import MixStats
from traces.stats import Spread, TraceStats

SHOWN_BAD_ROWS = 5


def bad_rows(shown: Sequence[BadRow], total: int, rows: int) -> list[RenderableType]:
    """The first bad rows with their reasons and how many there are; nothing where there are none."""
    if not total:
        return []
    lines = [
        f"{total:,} of {numbers.counted(rows, 'row')} {'is not a request and was' if total == 1 else 'are not requests and were'} left out:"
    ]
    lines += [f"  line {row.line}: {row.message}" for row in shown[:SHOWN_BAD_ROWS]]
    if total > SHOWN_BAD_ROWS:
        lines.append(f"  and {total - SHOWN_BAD_ROWS:,} more")
    return [Text("\n".join(lines), style="yellow"), Text("")]


def figure(value: float | None) -> str:
    """A number with thousands separated, at most one decimal; a dash for none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def spread_table(title: str, rows: Sequence[tuple[str, Spread]]) -> Table:
    """Spreads, one a row."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title)
    for column in ("mean", "p50", "p90", "p99", "min", "max"):
        table.add_column(column, justify="right")
    for name, s in rows:
        table.add_row(name, *map(figure, (s.mean, s.p50, s.p90, s.p99, s.min, s.max)))
    return table


def _facts(rows: Sequence[tuple[str, str]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in rows:
        table.add_row(name, text)
    return table


def render_stats(head: str, stats: TraceStats, reuse: PrefixReuse | None) -> Group:
    """The figures of a trace."""
    facts = [
        ("trace", head),
        (
            "requests",
            f"{stats.requests:,}; {stats.total_prompt_tokens:,} prompt and {stats.total_output_tokens:,} output "
            f"tokens; {stats.zero_prompts:,} empty prompts, {stats.zero_outputs:,} empty outputs",
        ),
    ]
    spreads = [("prompt", stats.prompt_tokens), ("output", stats.output_tokens)]
    if (a := stats.arrivals) is not None:
        rate = "" if a.rate_per_s is None else f"{a.rate_per_s:.2f} requests/s; "
        cv = "-" if a.cv is None else f"{a.cv:.3f}"
        dispersion = "-" if a.dispersion_60s is None else f"{a.dispersion_60s:.1f}"
        facts.append(
            (
                "arrivals",
                f"{rate}span {a.span_s:,.2f} s; CV {cv}; dispersion in 60 s bins {dispersion}; busiest minute "
                f"{a.busiest_minute:,} (mean {a.mean_per_minute:,.0f}); longest gap {figure(a.longest_gap_s)} s; "
                f"{a.distinct_times:,} distinct times",
            )
        )
    elif stats.sessions is None:
        facts.append(("arrivals", "none in the file; give some with --arrivals, such as poisson:5"))
    if (s := stats.sessions) is not None:
        facts.append(("sessions", f"{s.sessions:,}, closed loops"))
        spreads.append(("requests a session", s.requests_per_session))
        if s.recorded_s.max:
            spreads.append(("recorded length, s", s.recorded_s))
        spreads.append(("think time, s", s.think_s))
    if reuse is not None and reuse.block_refs:
        facts.append(
            (
                "ideal reuse",
                f"{reuse.token_hit_ratio:.2%} of prompt tokens, {reuse.block_hit_ratio:.2%} of blocks of "
                f"{reuse.block_tokens} ({reuse.block_refs:,} references to {numbers.counted(reuse.distinct_blocks, 'block')}, "
                f"{reuse.single_use_blocks:,} used once); mean over requests {reuse.mean_request_hit_ratio:.1%}; "
                f"{numbers.counted(reuse.requests_with_hit, 'request')} with a hit",
            )
        )
    parts: list[RenderableType] = [_facts(facts), Text(""), spread_table("tokens", spreads)]
    useful = (
        [size for size in reuse.lru if size.capacity_blocks < reuse.distinct_blocks]
        if reuse
        else []
    )
    if useful:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("LRU cache, blocks")
        table.add_column("token hits")
        for size in useful:
            table.add_row(f"{size.capacity_blocks:,}", f"{size.token_hit_ratio:.2%}")
        parts += [Text(""), table]
    return Group(*parts)


def render_mix(head: str, stats: MixStats) -> Group:
    """The figures of a recording of clients."""
    facts = [
        ("clients", head),
        (
            "rates",
            f"{numbers.counted(stats.clients, 'client')} over {stats.span_s:,.0f} s; {stats.rate_per_s:.1f} requests/s "
            f"({stats.lowest_window_rate:.1f} to {stats.highest_window_rate:.1f} by window); rate-weighted CV "
            f"{stats.cv:.2f}; the largest client makes {stats.largest_client_share:.1%}; "
            f"{stats.silent_windows:,} of {stats.windows:,} client windows are silent",
        ),
    ]
    rows = [("prompt", stats.prompt_tokens), ("output", stats.output_tokens)]
    return Group(_facts(facts), Text(""), spread_table("tokens, rate-weighted", rows))
