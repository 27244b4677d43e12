"""Latencies as charts and a table: the part that a replay's page and a run's page have in common."""

from collections.abc import Mapping, Sequence
from typing import Final

from traces.report import numbers
from traces.report.document import Chart, Column, Curve, Mark, Table
from traces.stats import Spread

MEANINGS: Final = (
    ("TTFT", "arrival to first token", "ttft_ms"),
    ("TPOT", "mean gap between tokens", "tpot_ms"),
    ("End to end", "arrival to last token", "e2e_ms"),
)


def latency_charts(
    spreads: Mapping[str, Spread],
    share: Sequence[float],
    distributions: Mapping[str, list[float]],
    label: str,
    other: tuple[str, Sequence[float], Mapping[str, list[float]]] | None = None,
) -> list[Chart]:
    """A chart for each latency that has samples; percentiles marked.

    Args:
        spreads: By name.
        share: Where distributions are read off.
        distributions: By name, values at `share`.
        label: Of the curve.
        other: Label, shares and distributions to lay over it.
    """
    charts = []
    for title, meaning, name in MEANINGS:
        values, s = distributions[name], spreads[name]
        curves = [Curve(label=label, x=values, y=list(share))] if values else []
        if other is not None and other[2][name]:
            curves.append(Curve(label=other[0], x=other[2][name], y=list(other[1]), look="second"))
        if not curves:
            continue
        marks = [
            Mark(text=f"p{percent} {numbers.ms(value)}", x=value, y=percent / 100)
            for percent, value in ((50, s.p50), (90, s.p90), (99, s.p99))
            if value is not None
        ]
        charts.append(
            Chart(
                title=title, x_title=meaning, y_title="share of requests", log_x=True, x_unit="ms", y_share=True, marks=marks, curves=curves,
            )
        )  # fmt: skip
    return charts


def latency_table(spreads: Mapping[str, Spread]) -> Table:
    """Percentiles of the latencies."""
    rows = []
    for title, _, name in MEANINGS:
        s = spreads[name]
        figures = (s.p50, s.p90, s.p99, s.mean, s.max)
        rows.append([title, *map(numbers.ms, figures), numbers.count(s.count)])
    heads = ("p50", "p90", "p99", "mean", "max", "samples")
    return Table(
        name="latency-table",
        columns=[Column(title="", text=True), *(Column(title=head) for head in heads)],
        rows=rows,
    )
