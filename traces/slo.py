"""What a service promises: limits on latencies at percentiles, and a share of requests that keeps all of them. Knows no replay.

Spelled `ttft_p99=2s,tpot_p99=60ms,goodput=95%`: a metric is ttft, tpot or e2e; without a percentile it is p99.
"""

import math
import re
from decimal import Decimal
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from engine.core.errors import ConfigError

Metric = Literal["ttft", "tpot", "e2e"]
METRICS: Final[tuple[Metric, ...]] = ("ttft", "tpot", "e2e")
EXAMPLE: Final = "ttft_p99=2s,tpot_p99=60ms"
_UNITS_MS: Final = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4, "min": 6e4}
_CLAUSE: Final = re.compile(r"(ttft|tpot|e2e)(?:_p(\d+(?:\.\d{1,4})?))?", re.ASCII)
"""Of percentiles no more digits than names tell."""
_TIME: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)", re.ASCII)
_SHARE: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(%?)", re.ASCII)
_SHORTEST_MS: Final = 1e-6
_LONGEST_MS: Final = 365 * 86_400e3


class Clause(Struct, frozen=True, kw_only=True):
    """One limit: of all requests, the share `percentile` must have at most `limit_ms`."""

    metric: Metric
    percentile: Annotated[float, Meta(gt=0, le=100)]
    limit_ms: Annotated[float, Meta(gt=0)]

    @property
    def name(self) -> str:
        """As it is spelled: ttft_p99."""
        return f"{self.metric}_p{self.percentile:g}"

    @property
    def limit_ns(self) -> int:
        """The limit in nanoseconds."""
        return round(self.limit_ms * 1e6)


class Slo(Struct, frozen=True, kw_only=True):
    """All of a service's promises."""

    clauses: tuple[Clause, ...]
    goodput: float | None = None
    """This share of the requests must keep the limits of all clauses at once."""

    @property
    def metrics(self) -> list[Metric]:
        """Those that have a limit, in the order of `METRICS`."""
        return [m for m in METRICS if any(clause.metric == m for clause in self.clauses)]

    def limit_ns(self, metric: Metric) -> int | None:
        """What a single request must keep to count as good: the widest of the metric's limits; None where it has none."""
        limits = [clause.limit_ns for clause in self.clauses if clause.metric == metric]
        return max(limits, default=None)

    def __str__(self) -> str:
        """As it is spelled."""
        parts = [f"{clause.name}={spell_ms(clause.limit_ms)}" for clause in self.clauses]
        if self.goodput is not None:
            parts.append(f"goodput={_digits(self.goodput)}")
        return ",".join(parts)


def spell_ms(milliseconds: float) -> str:
    """`2s`, `60ms`: a limit as it is spelled."""
    return (
        f"{_digits(milliseconds / 1e3)}s" if milliseconds >= 1e3 else f"{_digits(milliseconds)}ms"
    )


def _digits(value: float) -> str:
    """So many digits that it reads back as the same value, and no exponent."""
    return format(Decimal(repr(value)).normalize(), "f")


def allowed_misses(population: int, percent: float) -> int:
    """How many of `population` may exceed a limit at that percentile, by nearest rank: the ceil(percent · population)-th smallest counts."""
    return population - math.ceil(round(percent * population / 100, 6))


def parse_slo(text: str) -> Slo:
    """The promises that are spelled out.

    Raises:
        ConfigError: a clause is not understood, or given twice; says which and how it would be spelled.
    """
    clauses: list[Clause] = []
    goodput: float | None = None
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        key, value = key.strip().lower(), value.strip().lower()
        if not equals:
            raise ConfigError(
                f"--slo: {part.strip()!r} is no limit; write METRIC_pNN=TIME, such as {EXAMPLE}"
            )
        if key == "goodput":
            if goodput is not None:
                raise ConfigError("--slo: goodput is given twice")
            goodput = _share(value)
            continue
        clause = _clause(key, value)
        if any(clause.name == other.name for other in clauses):
            raise ConfigError(f"--slo: {clause.name} is given twice")
        clauses.append(clause)
    if not clauses:
        raise ConfigError(f"--slo: goodput needs limits to count by, such as {EXAMPLE},goodput=95%")
    return Slo(clauses=tuple(clauses), goodput=goodput)


def _clause(key: str, value: str) -> Clause:
    match = _CLAUSE.fullmatch(key)
    percentile = float(match[2] or 99) if match else 0.0
    if match is None or not 0 < percentile <= 100:
        raise ConfigError(
            f"--slo: {key!r} is unknown; known are ttft, tpot and e2e, each with a percentile from above 0 to 100, of at most "
            "4 decimals, such as ttft_p99, and goodput"
        )
    time = _TIME.fullmatch(value)
    unit = _UNITS_MS.get(time[2]) if time else None
    if time is None or unit is None or not float(time[1]) > 0:
        raise ConfigError(
            f"--slo: {key}={value}: a limit is a time above 0 with its unit, such as 2s or 60ms"
        )
    limit_ms = round(float(time[1]) * unit, 6)
    if not _SHORTEST_MS <= limit_ms <= _LONGEST_MS:
        raise ConfigError(f"--slo: {key}={value}: a limit is from a nanosecond to a year")
    metric = next(metric for metric in METRICS if metric == match[1])
    return Clause(metric=metric, percentile=percentile, limit_ms=limit_ms)


def _share(value: str) -> float:
    match = _SHARE.fullmatch(value)
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share <= 1:
        raise ConfigError(
            f"--slo: goodput={value}: a share is above 0 and at most 1, such as 0.95 or 95%"
        )
    return share
