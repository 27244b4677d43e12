"""Where the KV memory of a run went, in hindsight: as rows for a page and as a line for a terminal. Computes nothing."""

from sim.report.figures import Hindsight
from traces.report import numbers
from traces.report.document import Column, Table


def parts_of(seen: Hindsight) -> list[tuple[str, float, str]]:
    """(name, share of the pool, meaning), which add up to the pool."""
    parts = [("token states", seen.token_states, "holds a computed token")]
    if seen.reserved is not None and seen.internal is not None:
        parts += [
            ("reserved", seen.reserved, "held for tokens that the same sequence made later"),
            ("internal", seen.internal, "held for a sequence and never used by it"),
        ]
    else:
        meaning = "tails of last blocks, and prompts not computed yet"
        parts.append(("held and unused", seen.unused, meaning))
    if seen.rounding:
        parts.append(("rounding", seen.rounding, "lost because runs are powers of two"))
    parts.append(("free or cached", seen.free, "in no sequence"))
    return parts


def memory_line(seen: Hindsight) -> str:
    """In one line."""
    return ", ".join(f"{numbers.percent(share)} {name}" for name, share, _ in parts_of(seen))


def memory_table(seen: Hindsight) -> Table:
    """As shares of the pool over the whole run."""
    return Table(
        name="hindsight",
        columns=[
            Column(title="KV memory in hindsight", text=True, help="Mean over the whole run"),
            Column(title="Share of the pool"),
            Column(title="", text=True),
        ],
        rows=[[name, numbers.percent(share), meaning] for name, share, meaning in parts_of(seen)],
    )
