"""A plan as a document: its findings with pictures, the frontier of size, cost and latency, goodput against rate, what scaling could save, what moves the answer."""

from sim.plan.findings import machines, point_at, replica_name
from sim.plan.result import Candidate, PlanResult, Point
from sim.plan.words import METRICS, glossary, promises
from sim.report.memory_table import memory_table
from sim.report.plan_findings import page_finding
from sim.report.plan_tables import machine_table, point_table, variant_table
from traces.judge import ClauseFigure
from traces.report import numbers
from traces.report.document import (
    Chart,
    Charts,
    Curve,
    Document,
    Fact,
    Facts,
    Line,
    Mark,
    OverTime,
    Part,
    Section,
    Strip,
    Words,
)
from traces.slo import Clause

MOST_FINDINGS = 6
LOOKS = ("first", "second", "third", "fourth")


def document(result: PlanResult, files: list[str]) -> Document:
    """The page of a plan; `files` hold the same figures."""
    trace = result.trace
    first, rest = result.findings[:MOST_FINDINGS], result.findings[MOST_FINDINGS:]
    sections = [_machines(result, rest), _frontier(result)]
    best = result.candidates[result.best] if result.best is not None else None
    if best is not None:
        sections += [
            s
            for s in (_rates(result, best), _scaling(best), _sensitivity(best), _memory(best))
            if s
        ]
    sections += [_words(result), _assumptions(result)]
    what = "users" if result.mode == "users" else "fleet"
    span = f" over {numbers.seconds(trace.span_s)}" if result.mode == "fleet" else ""
    return Document(
        title=f"Sizing a {what} for {trace.name}"
        if what == "fleet"
        else f"How many users of {trace.name} fit",
        subtitle=f"{result.model} within {result.slo}; {numbers.counted(trace.requests, 'request')}{span}; {numbers.counted(result.simulations, 'simulation')}",
        findings=[page_finding(sentence, result) for sentence in first],
        sections=[s for s in sections if s is not None],
        footer=[
            f"The same figures: {', '.join(files)}",
            f"question {result.question_sha256}",
            f"trace {trace.sha256}",
        ],
    )


def _machines(result: PlanResult, rest: list[str]) -> Section:
    parts: list[Part] = [machine_table(result)]
    if rest:
        parts.append(Words(lines=rest))
    return Section(
        name="machines",
        title="Machines",
        lead=f"Each kind of machine that was asked for, at the {'most users' if result.mode == 'users' else 'fewest'} that keep every promise at once.",
        parts=parts,
    )


# -- the frontier --------------------------------------------------------------------------------------------------


def _size(point: Point) -> int:
    return point.users if point.users is not None else point.replicas


def _frontier(result: PlanResult) -> Section | None:
    shown = [c for c in result.candidates if c.points]
    if not shown:
        return None
    unit = "users" if result.mode == "users" else "replicas"
    charts = []
    for place, clause in enumerate(result.slo.clauses):
        curves, marks = _curves(shown, place, lambda point: float(_size(point)))
        if curves:
            charts.append(_clause_chart(clause, f"against {unit}", unit, curves, marks))
    costs = []
    for place, clause in enumerate(result.slo.clauses):
        curves, marks = _curves(shown, place, _dollars)
        if curves:
            costs.append(
                _clause_chart(clause, "against cost", "USD a million output tokens", curves, marks)
            )
    parts: list[Part] = []
    if charts:
        parts.append(Charts(name="frontier", charts=charts))
    if costs:
        parts.append(Charts(name="cost-frontier", charts=costs))
    parts.append(point_table(result))
    return Section(
        name="frontier-section",
        title="Frontier",
        lead=f"Every {'number of users' if result.mode == 'users' else 'fleet'} that was simulated. Lower is faster, further left is smaller or cheaper; the dashed line is the promise.",
        parts=parts,
    )


def _dollars(point: Point) -> float | None:
    return point.cost.usd_per_million_output_tokens if point.cost is not None else None


def _curves(
    candidates: list[Candidate], place: int, x_of: object
) -> tuple[list[Curve], list[Mark]]:
    assert callable(x_of)
    curves, marks = [], []
    for look, candidate in zip(_looks(len(candidates)), candidates, strict=True):
        pairs = []
        for point in candidate.points:
            x, y = x_of(point), point.clauses[place].value_ms if point.clauses else None
            if x is not None and y is not None:
                pairs.append((float(x), y))
        if not pairs:
            continue
        pairs.sort()
        name = replica_name(candidate)
        curves.append(
            Curve(
                label=name, x=[x for x, _ in pairs], y=[y for _, y in pairs], look=look, dots=True
            )
        )
        marks.append(Mark(text=name, x=pairs[-1][0], y=pairs[-1][1], look=look))
    return curves, marks


def _looks(count: int) -> list[str]:
    return [LOOKS[i % len(LOOKS)] for i in range(count)]


def _clause_chart(
    clause: Clause, against: str, x_title: str, curves: list[Curve], marks: list[Mark]
) -> Chart:
    limit = Mark(text=f"promised {numbers.ms(clause.limit_ms)}", y=clause.limit_ms)
    return Chart(
        title=f"{clause.name} {against}", x_title=x_title, y_title=METRICS[clause.metric], y_unit="ms", x_zero=True, curves=curves, marks=[*marks, limit],
    )  # fmt: skip


# -- the rest ------------------------------------------------------------------------------------------------------


def _kept(clause: ClauseFigure) -> float:
    return 1 - clause.misses / clause.population if clause.population else 1.0


def _rates(result: PlanResult, best: Candidate) -> Section | None:
    """Share of requests within each limit, at the answer, as the rate grows."""
    variants = [v for v in best.sensitivity if v.setting == "rate_scale" and v.clauses]
    base = point_at(best, best.users or best.replicas)
    if not variants or base is None or not result.trace.span_s:
        return None
    scale = float(variants[0].base)
    rate = result.trace.requests / result.trace.span_s / scale
    points = [
        (scale, base.clauses, base.good_share),
        *((float(v.value), v.clauses, v.good_share) for v in variants),
    ]
    points.sort(key=lambda p: p[0])
    x = [rate * at for at, _, _ in points]
    first, *looks = _looks(len(base.clauses) + 1)
    curves = []
    if len(result.slo.metrics) > 1:
        every = [rate * at * (share or 0.0) for at, _, share in points]
        curves.append(Curve(label="within all at once", x=x, y=every, look=first, dots=True))
    for place, (look, clause) in enumerate(zip(looks, base.clauses, strict=True)):
        goodput = [rate * at * _kept(clauses[place]) for at, clauses, _ in points]
        curves.append(Curve(label=f"within {clause.name}", x=x, y=goodput, look=look, dots=True))
    chart = Chart(
        title="Goodput against rate", x_title="requests offered a second", y_title="requests a second within the limit", x_zero=True,
        curves=[*curves, Curve(label="all offered", x=[0.0, *x], y=[0.0, *x], look="offered")],
    )  # fmt: skip
    return Section(
        name="rate",
        title="Goodput",
        lead=f"{machines(best.replicas or 1, best)} under the trace at other rates: how many requests a second keep all limits at once, and each by itself. On the thin line all do.",
        parts=[Charts(name="goodput", charts=[chart])],
    )


def _scaling(best: Candidate) -> Section | None:
    scaling = best.autoscaling
    if scaling is None or len(scaling.replicas) < 2:
        return None
    end_s = [scaling.window_s * (i + 1) for i in range(len(scaling.replicas))]
    fixed = float(best.replicas or 0)
    strips = [
        Strip(
            title="Replicas",
            unit="in each window",
            lines=[
                Line(
                    label="fewest needed", values=[float(n) for n in scaling.replicas], look="used"
                ),
                Line(label="the fixed answer", values=[fixed] * len(end_s), look="second"),
            ],
        ),
        Strip(
            title="Requests",
            unit="in each window",
            lines=[
                Line(label="arrivals", values=[float(n) for n in scaling.requests], look="used")
            ],
        ),
    ]
    return Section(
        name="scaling",
        title="Scaling over time",
        lead=(
            f"The fewest replicas that each window of {scaling.window_s:g} s needs by itself: {scaling.replica_hours:.2f} replica-hours instead of "
            f"{scaling.fixed_replica_hours:.2f}. No real policy that keeps the promises in every window reaches it."
        ),
        parts=[OverTime(name="scaling-time", end_s=end_s, strips=strips)],
    )


def _sensitivity(best: Candidate) -> Section | None:
    if not best.sensitivity and best.reseeding is None:
        return None
    lead = "One setting changed at a time, on the best machine."
    parts: list[Part] = []
    again = best.reseeding
    if again is not None:
        facts = [
            Fact(name="draws", value=f"{again.seeds:,}"),
            Fact(name="the answer holds in", value=f"{again.holds:,}"),
            Fact(name="with the next safer, in", value=f"{again.holds_with_one_more:,}"),
            *(
                Fact(name=f"worst {name}", value=numbers.ms(value))
                for name, value in again.worst_ms.items()
            ),
        ]
        parts.append(
            Facts(
                title=f"Other draws of {'sessions' if best.users is not None else 'the trace'}",
                facts=facts,
            )
        )
    if best.sensitivity:
        parts.insert(0, variant_table(best))
    return Section(name="sensitivity", title="What moves the answer", lead=lead, parts=parts)


def _memory(best: Candidate) -> Section | None:
    point = point_at(best, best.users or best.replicas)
    if point is None or point.memory is None:
        return None
    return Section(
        name="memory",
        title="Memory",
        lead=f"Where the memory for KV of {machines(best.replicas or 1, best)} went, over the whole run of the answer.",
        parts=[memory_table(point.memory)],
    )


def _words(result: PlanResult) -> Section:
    facts = [
        Fact(name=word, value=said)
        for word, said in glossary(result.slo, users=result.mode == "users")
    ]
    return Section(
        name="words",
        title="Words",
        lead=f"Promised is that {promises(result.slo)}.",
        parts=[Facts(title="What tables and charts name", facts=facts)],
    )


def _assumptions(result: PlanResult) -> Section:
    settings = [
        Fact(name=numbers.name(k), value=numbers.plain(v))
        for k, v in result.settings.items()
        if not isinstance(v, dict)
    ]
    nested = [(k, v) for k, v in result.settings.items() if isinstance(v, dict)]
    clauses = [
        Fact(name=clause.name, value=f"at most {numbers.ms(clause.limit_ms)}")
        for clause in result.slo.clauses
    ]
    if result.slo.goodput is not None:
        clauses.append(
            Fact(name="goodput", value=f"at least {numbers.percent(result.slo.goodput)}")
        )
    trace = result.trace
    facts = [
        Fact(name="file", value=f"{trace.name} ({trace.format})"),
        Fact(name="arrivals", value="recorded" if trace.has_arrivals else "supplied"),
        Fact(name="requests", value=f"{trace.requests:,}"),
        Fact(name="sessions", value=f"{trace.sessions:,}"),
        Fact(name="left out as too long", value=f"{trace.left_out:,}"),
        Fact(name="bad rows", value=f"{sum(trace.bad.values()):,}"),
    ]
    parts: list[Part] = [
        Words(lines=result.assumptions),
        Facts(title="Promises", facts=clauses),
        Facts(title="Settings", facts=settings),
    ]
    parts += [
        Facts(
            title=numbers.name(name).capitalize(),
            facts=[Fact(name=numbers.name(k), value=numbers.plain(v)) for k, v in inner.items()],
        )
        for name, inner in nested
    ]
    parts.append(Facts(title="Trace", facts=facts))
    return Section(
        name="assumptions",
        title="Assumptions",
        lead="Everything that the answer takes for granted.",
        parts=parts,
    )
