"""Structs as lists of facts. Knows no report."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from traces.report import numbers
from traces.report.document import Fact
from traces.stats import Spread


def facts_of(struct: Struct) -> list[Fact]:
    """Each field of a struct that is no struct itself, by its name."""
    facts = []
    for name, value in msgspec.to_builtins(struct).items():
        if isinstance(value, dict):
            if isinstance(getattr(struct, name), Struct):
                continue
            value = ", ".join(f"{key} {numbers.plain(each)}" for key, each in value.items())
        elif isinstance(value, Sequence) and not isinstance(value, str):
            value = ", ".join(map(numbers.plain, value))
        text = numbers.gib(value) if name.endswith("_bytes") else numbers.plain(value)
        facts.append(Fact(name=numbers.name(name), value=text))
    return facts


def spread_text(spread: Spread) -> str:
    """A sample in one line."""
    if spread.mean is None:
        return numbers.NONE
    return f"mean {spread.mean:,.1f}, p50 {spread.p50:,.0f}, p99 {spread.p99:,.0f}, max {spread.max:,.0f}"
