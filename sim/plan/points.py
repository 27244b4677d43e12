"""Outcomes as points of a plan, with what they cost. Knows prices; runs nothing."""

from collections.abc import Mapping

from msgspec import Struct

from engine.core.errors import ConfigError
from sim.hardware import Hardware
from sim.plan.result import Cost, Point
from sim.plan.trial import Outcome
from traces.names import UnknownNameError, find_name

OVERRIDE = "given with --price"


class Price(Struct, frozen=True, kw_only=True):
    """Of one device for an hour."""

    usd_per_hour: float | None
    as_of: str | None
    source: str | None


def price_of(hardware: Hardware, given: Mapping[str, float]) -> Price:
    """The price that was given, else the table's; both may be absent."""
    if hardware.name in given:
        return Price(usd_per_hour=given[hardware.name], as_of=None, source=OVERRIDE)
    return Price(
        usd_per_hour=hardware.usd_per_hour,
        as_of=hardware.price_date or None,
        source=hardware.price_source or None,
    )


def parse_prices(texts: list[str], names: list[str]) -> dict[str, float]:
    """`H200=3.2` each: US dollars for an hour of one device, by the names of the hardware that is compared.

    Raises:
        ConfigError: not of that shape, or the hardware is not compared.
    """
    prices: dict[str, float] = {}
    for text in texts:
        for part in text.split(","):
            name, _, value = part.partition("=")
            try:
                price = float(value)
            except ValueError:
                price = -1.0
            if not 0 <= price < 1e6:
                raise ConfigError(f"--price {part!r}: write HARDWARE=DOLLARS, such as H200=3.2")
            known = {known: known for known in names}
            try:
                hardware = find_name("hardware", name.strip(), known, "")
            except UnknownNameError:
                raise ConfigError(
                    f"--price {part}: {name.strip()!r} is not compared here, only {', '.join(names)}; give it in --hardware too"
                ) from None
            prices[hardware] = price
    return prices


def cost_of(outcome: Outcome, devices: int, price: float | None) -> Cost | None:
    """What the run's machines cost while it lasted; None without a price, or where it was given up."""
    if price is None or outcome.stopped_s is not None:
        return None
    usd = devices * price * outcome.simulated_s / 3600
    output = outcome.output_tokens
    both = output + outcome.prompt_tokens
    return Cost(
        usd_per_hour=devices * price,
        usd_per_million_output_tokens=usd * 1e6 / output if output else None,
        usd_per_million_tokens=usd * 1e6 / both if both else None,
    )


def point_of(
    outcome: Outcome, replicas: int, devices: int, price: float | None, users: int | None = None
) -> Point:
    """The run as a point; `devices` are those of all replicas."""
    seconds = outcome.simulated_s
    return Point(
        replicas=replicas,
        users=users,
        meets=outcome.meets,
        stopped_s=outcome.stopped_s,
        clauses=outcome.clauses,
        good_share=outcome.good_share,
        submitted=outcome.submitted,
        done=outcome.done,
        rejected=outcome.rejected,
        unfinished=outcome.unfinished,
        undecided=outcome.undecided,
        warm_up=outcome.warm_up,
        preemptions=outcome.preemptions,
        ttft_ms=outcome.ttft_ms,
        tpot_ms=outcome.tpot_ms,
        e2e_ms=outcome.e2e_ms,
        simulated_s=seconds,
        busy_share=outcome.busy_share,
        requests_per_s=outcome.done / seconds if seconds else 0.0,
        output_tokens_per_s=outcome.output_tokens / seconds if seconds else 0.0,
        cost=cost_of(outcome, devices, price),
        memory=outcome.memory,
    )
