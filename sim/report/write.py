"""A replay's report to files: the page, and JSON and CSV of every figure in it beside it. Knows names of files; knows no flags."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from sim.report.figures import ReplayReport, Resolved
from sim.report.moments import moments
from sim.report.page import document
from sim.report.requests import Rows
from sim.twin import Run
from traces.figures import write_figures
from traces.report.html import page
from traces.report.tables import Lines, columns, single_figures, write_tables, write_text
from traces.schema import TraceRequest


def write_page(
    path: Path,
    report: ReplayReport,
    run: Run,
    resolved: Resolved,
    again: Callable[[], Iterable[TraceRequest]],
    hash_block_tokens: int,
    *,
    json: Path,
    csv: Path,
) -> None:
    """Writes the page; `json` and `csv` are where the figures lie, and are written too.

    Raises:
        ConfigError: a file cannot be written.
        TraceError: from reading the requests `again`, for the block maps.
    """
    rows = Rows(run.ledger)
    maps = moments(report, run, resolved, again, hash_block_tokens)
    table = rows.table(f"{csv.name}/requests.csv")
    write_text(page(document(report, maps, table, [json.name, f"{csv.name}/"])), path)
    write_figures(report, json)
    write_csv(csv, report, rows)


def write_csv(folder: Path, report: ReplayReport, rows: Rows) -> None:
    """Writes every figure as CSV.

    Raises:
        ConfigError: the folder cannot be written.
    """
    write_tables(replay_tables(report, rows), folder)


def replay_tables(report: ReplayReport, rows: Rows) -> Mapping[str, Lines]:
    """The tables by name."""
    series = report.over_time
    spreads = report.distributions
    tables: dict[str, Lines] = {
        "figures": single_figures(report),
        "over_time": columns({name: getattr(series, name) for name in series.__struct_fields__}),
        "requests": rows.lines(),
    }
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        values = getattr(spreads, name)
        if values:
            tables[name] = columns({"share": spreads.share, name: values})
    return tables
