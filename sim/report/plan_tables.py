"""Tables of a plan's page: machines, every point that was simulated, what moves the answer."""

from sim.plan.findings import machines, replica_name
from sim.plan.result import Candidate, PlanResult, Point
from sim.plan.table import is_answer
from sim.plan.words import SETTINGS, meaning
from traces.judge import ClauseFigure
from traces.report import numbers
from traces.report.document import Column, Table

REPLICAS = "Copies of the model, each on its own devices"
USERS = "Who work at once, each through sessions of the trace one after another"


def _usd(value: float | None, digits: int = 2) -> str:
    return numbers.NONE if value is None else f"{value:,.{digits}f}"


def machine_table(result: PlanResult) -> Table:
    """A row for each kind of machine, the cheapest marked."""
    users = result.mode == "users"
    rows = []
    for place, candidate in enumerate(result.candidates):
        cost = candidate.cost
        name = (
            machines(candidate.replicas or 1, candidate)
            if candidate.feasible or users
            else candidate.hardware
        )
        answer = (
            [f"{'≥ ' if candidate.at_least else ''}{numbers.count(candidate.users)}"]
            if users
            else [numbers.count(candidate.replicas), numbers.count(candidate.devices)]
        )
        money = (
            [_usd(candidate.usd_per_user_hour, 3)]
            if users
            else [
                _usd(cost.usd_per_million_output_tokens if cost else None),
                _usd(cost.usd_per_million_tokens if cost else None, 3),
            ]
        )
        verdict = (
            "the answer"
            if place == result.best
            else "does it"
            if candidate.feasible
            else "; ".join(r.message for r in candidate.reasons)
        )
        rows.append([name, *answer, _usd(cost.usd_per_hour if cost else None), *money, verdict])
    sizes = (
        [Column(title="Users", help=USERS)]
        if users
        else [
            Column(title="Replicas", help=REPLICAS),
            Column(title="Devices", help="Of all replicas together"),
        ]
    )
    money_heads = (
        [Column(title="USD a user-hour", help="Of all devices, shared among the users")]
        if users
        else [
            Column(
                title="USD / M output",
                help="US dollars for a million output tokens, over the whole trace",
            ),
            Column(
                title="USD / M tokens",
                help="US dollars for a million tokens, prompts and outputs counted alike",
            ),
        ]
    )
    columns = [
        Column(title="Machine", text=True),
        *sizes,
        Column(title="USD / h", help="US dollars for an hour of all devices, busy or not"),
        *money_heads,
        Column(title="", text=True),
    ]
    return Table(name="machine-table", columns=columns, rows=rows)


def point_table(result: PlanResult) -> Table:
    """A row for each fleet that was simulated."""
    columns = [
        Column(title="Machine", text=True),
        Column(title="Users", help=USERS)
        if result.mode == "users"
        else Column(title="Replicas", help=REPLICAS),
        *(
            Column(
                title=clause.name,
                help=f"{meaning(clause)}; promised {numbers.ms(clause.limit_ms)}",
            )
            for clause in result.slo.clauses
        ),
        Column(title="Good", help="Share of requests that kept every limit at once"),
        Column(title="Busy", help="Share of the time in which a step runs"),
        Column(title="Preemptions", help="Times that a running request had to give up its memory"),
        Column(title="Output / s", help="Output tokens a second, of all replicas"),
        Column(
            title="USD / M output",
            help="US dollars for a million output tokens, over the whole trace",
        ),
        Column(title="", text=True),
    ]
    rows = [
        [
            replica_name(candidate),
            numbers.count(point.users if point.users is not None else point.replicas),
            *_values(point.clauses, len(result.slo.clauses)),
            numbers.percent(point.good_share),
            numbers.percent(None if point.stopped_s is not None else point.busy_share),
            f"{point.preemptions:,}",
            numbers.count(point.output_tokens_per_s),
            _usd(point.cost.usd_per_million_output_tokens if point.cost else None),
            _verdict(candidate, point),
        ]
        for candidate in result.candidates
        for point in candidate.points
    ]
    return Table(name="points-table", columns=columns, rows=rows, tools=True)


def _values(clauses: list[ClauseFigure], count: int) -> list[str]:
    return [numbers.ms(clause.value_ms) for clause in clauses] or [numbers.NONE] * count


def _verdict(candidate: Candidate, point: Point) -> str:
    if point.stopped_s is not None:
        return f"misses; given up after {numbers.seconds(point.stopped_s)}"
    if not point.meets:
        return "misses"
    return "meets: the answer" if is_answer(candidate, point) else "meets"


def variant_table(best: Candidate) -> Table:
    """A row for each setting that was changed."""
    names = [clause.name for clause in next((v.clauses for v in best.sensitivity if v.clauses), [])]
    unit = "Users" if best.users is not None else "Replicas"
    columns = [
        Column(title="With", text=True),
        Column(title="Instead of", text=True),
        Column(title=unit, help="The answer with this setting"),
        Column(title="Change", help="Of the answer"),
        *(Column(title=name, help="With this setting and the answer as it is") for name in names),
        Column(title="", text=True),
    ]
    rows = [
        [
            f"{numbers.name(v.setting)} {v.value}"
            + (f" ({SETTINGS[v.setting]})" if v.setting in SETTINGS else ""),
            v.base,
            numbers.count(v.answer),
            numbers.NONE if v.change is None else f"{v.change:+d}" if v.change else "0",
            *_values(v.clauses, len(names)),
            v.reason or "",
        ]
        for v in best.sensitivity
    ]
    return Table(name="variant-table", columns=columns, rows=rows)
