"""What a plan takes for granted, in sentences. Knows the question and its machines, and no result."""

from collections.abc import Sequence

from sim.plan.points import OVERRIDE
from sim.plan.question import Question
from sim.plan.sized import Sized
from sim.plan.users import PAUSE_NS
from sim.report.figures import Resolved


def _prices_of(machine: Resolved) -> str:
    if machine.table is not None:
        return f"the table {machine.table.file}, the same on all hardware"
    if machine.fit is not None:
        return f"a fit to the recording {machine.fit.recording}, the same on all hardware"
    return (
        f"the {machine.cost_model} cost model with one set of efficiency factors for all hardware"
    )


def assumptions_of(question: Question, sized: Sequence[Sized], *, users: bool) -> list[str]:
    """What the answer takes for granted."""
    found = [
        "Promises cover every request that is submitted: one that is rejected is infinitely late. Percentiles are by nearest rank.",
        "Latencies are the server's: no network, no tokenizer, no client.",
    ]
    machine = next((one.machine for one in sized if one.machine is not None), None)
    if machine is not None:
        found.append(
            f"Step times come from {_prices_of(machine)}; a replica "
            f"starts with an empty cache and is never ill; requests are routed {machine.settings.router}."
        )
    for one in sized:
        candidate = one.candidate
        price = candidate.usd_per_device_hour
        if price is None:
            found.append(f"{candidate.hardware} has no price: give one with --price.")
        elif candidate.price_source == OVERRIDE:
            found.append(f"{candidate.hardware}: ${price:g} a device-hour, {OVERRIDE}.")
        else:
            found.append(
                f"{candidate.hardware}: ${price:g} a device-hour, {candidate.price_source}, as of {candidate.price_as_of}."
            )
    if any(one.alone is not None and one.alone.hashed for one in sized):
        found.append(
            "The trace's block ids cover prompts only: an answer that returns in a later prompt is shared only where its ids say so."
        )
    if users:
        crowd = question.crowd
        found.append(
            f"Users begin over {crowd.warm_up_s:g} s, which are not judged, and are watched for {crowd.watched_s:g} s; each runs sessions "
            f"drawn from the trace, {PAUSE_NS // 10**9} s apart, with recorded think times, and shares no block with another."
        )
    elif question.seeds:
        found.append(
            "A redraw takes each request as often as a Poisson draw of mean 1 says, copies up to 10 s later, so bursts stay where they were; a copy "
            "shares no block with its original."
        )
    return found
