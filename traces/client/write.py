"""A run's report to files. Knows names of files; knows no flags."""

from pathlib import Path

from traces.client.bench import Bench
from traces.client.page import document, request_lines
from traces.figures import write_figures
from traces.report.html import page
from traces.report.tables import Lines, columns, single_figures, write_tables, write_text


def write_page(path: Path, run: Bench, *, json: Path, csv: Path) -> None:
    """Writes the page, and the figures to `json` and `csv`.

    Raises:
        ConfigError: a file cannot be written.
    """
    files = [json.name, f"{csv.name}/"]
    made = document(run.report, run.outcomes, files, f"{csv.name}/requests.csv")
    write_text(page(made), path)
    write_figures(run.report, json)
    write_csv(csv, run)


def write_csv(folder: Path, run: Bench) -> None:
    """Writes every figure as CSV.

    Raises:
        ConfigError: the folder cannot be written.
    """
    report = run.report
    series, spreads = report.over_time, report.distributions
    tables: dict[str, Lines] = {
        "figures": single_figures(report),
        "over_time": columns({name: getattr(series, name) for name in series.__struct_fields__}),
        "requests": request_lines(run.outcomes),
    }
    for name in ("ttft_ms", "tpot_ms", "e2e_ms", "gap_ms"):
        values = getattr(spreads, name)
        if values:
            tables[name] = columns({"share": spreads.share, name: values})
    if report.against is not None:
        tables["against"] = _against(run)
    write_tables(tables, folder)


def _against(run: Bench) -> Lines:
    assert run.report.against is not None
    yield "figure,unit,measured,predicted,error"
    for f in run.report.against.figures:
        values = ("" if v is None else repr(v) for v in (f.measured, f.predicted, f.error))
        yield f"{f.name},{f.unit},{','.join(values)}"
