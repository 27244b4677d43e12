"""How the answer changes with each setting that a user could turn, one at a time. Inquiries."""

from typing import Any

from msgspec import Struct

from engine.core.errors import ConfigError
from sim.config import ReplayConfig
from sim.plan.desk import Inquiry, Job
from sim.plan.ladder import Ladder
from sim.plan.question import Question
from sim.plan.result import Variant
from sim.plan.sized import Sized
from sim.plan.trial import Outcome
from sim.report.figures import Resolved
from sim.sweep.axes import Settings, show
from sim.sweep.workers import Failure

SWAP_HOST_GB = 64.0


class Change(Struct, frozen=True, kw_only=True):
    """One setting's other value, and what must go with it."""

    setting: str
    value: Any
    beside: Settings = {}


def changes_for(sized: Sized) -> list[Change]:
    """What is worth turning on this machine and this trace."""
    assert sized.machine is not None
    assert sized.alone is not None
    base = sized.machine.settings
    found: list[Change] = []

    def add(setting: str, *values: Any, **beside: Any) -> None:
        for value in values:
            if value != getattr(base, setting):
                found.append(Change(setting=setting, value=value, beside=beside))

    add("block_size", max(1, base.block_size // 2), base.block_size * 2, base.block_size * 4)
    add("token_budget", max(base.max_batch, base.token_budget // 2), base.token_budget * 2)
    add("max_batch", max(1, base.max_batch // 2), min(base.token_budget, base.max_batch * 2))
    add("max_partial_prefills", 1)
    add("watermark", 0.0, 0.05)
    if base.num_blocks is not None:
        add("num_blocks", max(1, base.num_blocks // 2), base.num_blocks * 2)
    elif base.kv_gb is not None:
        add("kv_gb", base.kv_gb / 2, base.kv_gb * 2)
    else:
        add("utilisation", 0.8, 0.95)
    if sized.alone.hashed:
        add("prefix_cache", not base.prefix_cache)
    paged = base.allocator == "paged"
    if paged:
        host_gb = base.host_gb or SWAP_HOST_GB
        add("preemption", "recompute", "swap", "auto", host_gb=host_gb)
        if base.preemption != "recompute":
            add("host_gb", base.host_gb / 2, base.host_gb * 2)
    add("policy", "fair")
    add("open_plans", 1)
    if (sized.candidate.replicas or 1) > 1:
        routers = ["round-robin", "least-loaded"]
        add("router", *routers, *(["prefix-aware"] if sized.alone.hashed else []))
    add("kv_dtype", "fp8")
    if paged and base.beam_width is None:
        add("num_sequences", base.num_sequences + 1)
    if paged and base.num_sequences == 1:
        add("beam_width", 2 * (base.beam_width or 1))
    if sized.candidate.users is None:
        shaping = base.shaping
        for factor in (1.1, 1.25, 1.5):
            rate = round(shaping.rate_scale * factor, 6)
            found.append(Change(setting="rate_scale", value=rate))
    return found


def vary(question: Question, sized: Sized, change: Change) -> Inquiry[Variant]:
    """The answer with the change: walks from the base's answer to thriftier sizes while they do, or to safer ones until one does.

    A size that cannot be simulated ends the walk; what was found before it stands.
    """
    base = sized.machine
    assert base is not None
    ladder = Ladder(question, sized)
    try:
        machine = question.machine(
            hardware=base.settings.hardware,
            tensor_parallel=base.settings.tensor_parallel,
            **change.beside,
            **{change.setting: change.value},
        )
    except ConfigError as error:
        return _variant(change, base, ladder, reason=error.message)
    place = ladder.sizes.index(ladder.answer)
    [result] = yield [_named(ladder.job(machine, ladder.answer), change)]
    if isinstance(result, Failure):
        return _variant(change, base, ladder, reason=result.message)
    step = -1 if result.meets else 1
    answer = ladder.answer if result.meets else None
    reason = None if result.meets else f"not even with {ladder.sizes[-1]}"
    while 0 <= (place := place + step) < len(ladder.sizes):
        [other] = yield [_named(ladder.job(machine, ladder.sizes[place], whole=False), change)]
        if isinstance(other, Failure):
            reason = f"with {ladder.sizes[place]}: {other.message}"
            break
        if other.meets:
            answer = ladder.sizes[place]
            reason = None
        if other.meets != result.meets:
            break
    return _variant(change, base, ladder, answer, result, reason)


def _named(job: Job, change: Change) -> Job:
    """The job as people who wait are told of it: some settings take many times as long as others."""
    return job._replace(label=f"{job.label} with {change.setting}={show(change.value)}")


def _variant(
    change: Change,
    base: Resolved,
    ladder: Ladder,
    answer: int | None = None,
    outcome: Outcome | None = None,
    reason: str | None = None,
) -> Variant:
    settings = base.settings
    source = settings if change.setting in ReplayConfig.__struct_fields__ else settings.shaping
    return Variant(
        setting=change.setting,
        value=show(change.value),
        base=show(getattr(source, change.setting)),
        answer=answer,
        change=answer - ladder.answer if answer is not None else None,
        meets_at_answer=outcome is not None and outcome.meets,
        clauses=outcome.clauses if outcome is not None else [],
        good_share=outcome.good_share if outcome is not None else None,
        reason=reason,
    )
