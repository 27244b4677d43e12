"""A plan for a terminal: the findings, then tables of machines, of the frontier and of what moves the answer. Knows the result alone."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sim.plan.findings import machines
from sim.plan.result import Candidate, PlanResult, Point, Variant
from sim.plan.table import is_answer
from sim.plan.words import glossary
from sim.sweep.render import show_ms
from traces.report import numbers


def render(result: PlanResult) -> Group:
    """Everything, the findings first."""
    parts: list[RenderableType] = []
    for place, sentence in enumerate(result.findings):
        parts.append(Text(sentence, style="bold" if place == 0 else ""))
    for candidate in result.candidates:
        if candidate.points:
            parts += [Text(""), _frontier(result, candidate)]
    best = result.candidates[result.best] if result.best is not None else None
    if best is not None and best.sensitivity:
        parts += [Text(""), _sensitivity(result, best)]
    if any(candidate.points for candidate in result.candidates):
        parts += [Text(""), *_words(result)]
    parts += [Text(""), *_footer(result)]
    return Group(*parts)


def _money(value: float | None) -> str:
    return "-" if value is None else f"${value:,.2f}"


def _frontier(result: PlanResult, candidate: Candidate) -> Table:
    users = result.mode == "users"
    title = machines(candidate.replicas or 1, candidate) if users else candidate.hardware
    if not users and candidate.tensor_parallel > 1:
        title = f"{candidate.tensor_parallel} x {title}"
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title, style="bold", no_wrap=True)
    for clause in result.slo.clauses:
        table.add_column(clause.name, justify="right", no_wrap=True)
    if result.slo.goodput is not None:
        table.add_column("good", justify="right")
    table.add_column("$/h", justify="right")
    table.add_column("$/M out", justify="right")
    table.add_column("")
    for point in candidate.points:
        table.add_row(*_cells(result, candidate, point), style="" if point.meets else "dim")
    return table


def _cells(result: PlanResult, candidate: Candidate, point: Point) -> Iterator[str]:
    size = point.users if point.users is not None else point.replicas
    unit = "user" if point.users is not None else "replica"
    yield f"{size:,} {unit}{'' if size == 1 else 's'}"
    for clause in point.clauses:
        yield show_ms(clause.value_ms) if clause.value_ms is not None else "-"
    if result.slo.goodput is not None:
        yield "-" if point.good_share is None else f"{point.good_share:.1%}"
    yield _money(point.cost.usd_per_hour if point.cost else None)
    yield _money(point.cost.usd_per_million_output_tokens if point.cost else None)
    if point.stopped_s is not None:
        yield f"misses: given up at {point.stopped_s:,.0f} s"
    else:
        answer = ", the answer" if is_answer(candidate, point) else ""
        yield f"{'meets' if point.meets else 'misses'}{answer}"


def _sensitivity(result: PlanResult, best: Candidate) -> Table:
    unit = "replicas" if best.users is None else "users"
    answer = best.users or best.replicas
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.title = "What if one setting were another"
    table.title_justify = "left"
    table.title_style = "bold"
    table.add_column("with", style="bold", no_wrap=True)
    table.add_column("instead of")
    table.add_column(unit, justify="right")
    for clause in result.slo.clauses:
        table.add_column(f"{clause.name} with {answer}", justify="right", no_wrap=True)
    for variant in best.sensitivity:
        table.add_row(*_variant_cells(variant, len(result.slo.clauses)))
    return table


def _variant_cells(variant: Variant, num_clauses: int) -> Iterator[str]:
    yield f"{variant.setting}={variant.value}"
    yield variant.base
    if variant.answer is None:
        yield "none" if variant.was_run else "-"
    else:
        yield (
            f"{variant.answer:,} ({variant.change:+d})" if variant.change else f"{variant.answer:,}"
        )
    values = [
        show_ms(clause.value_ms) if clause.value_ms is not None else "-"
        for clause in variant.clauses
    ]
    yield from values or ["-"] * num_clauses


def _words(result: PlanResult) -> Iterator[Text]:
    for word, meaning in glossary(result.slo, users=result.mode == "users"):
        yield Text.assemble((word, "bold"), f": {meaning}")


def _footer(result: PlanResult) -> Iterator[Text]:
    trace = result.trace
    sessions = f" in {numbers.counted(trace.sessions, 'session')}" if trace.sessions else ""
    left = f", {trace.left_out:,} left out as too long" if trace.left_out else ""
    bad = f", {numbers.counted(sum(trace.bad.values()), 'bad row')}" if trace.bad else ""
    span = f" over {trace.span_s:,.0f} s" if result.mode == "fleet" else ""
    yield Text(
        f"{trace.name} ({trace.format}): {numbers.counted(trace.requests, 'request')}{sessions}{span}{left}{bad}; {numbers.counted(result.simulations, 'simulation')}; "
        f"question {result.question_sha256[:12]}",
        style="dim",
    )
    for assumption in result.assumptions:
        yield Text(f"- {assumption}", style="dim")
