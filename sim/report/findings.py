"""What the figures of a replay say, in plain sentences: three to six of them, those that went wrong first. Computes nothing new but ratios.

A finding is there only where the figures carry it, and names what it was computed from.
"""

from collections.abc import Callable
from typing import Final

from sim.report.figures import FindingText, ReplayReport
from traces.report import numbers
from traces.report.promises import goodput_text

MOST: Final = 6
NEARLY_FULL: Final = 0.95
"""A pool with less than a twentieth free has no room for a new prompt to speak of."""
_WHY: Final = {
    "pool_exceeded": "need more blocks than the whole pool has",
    "context_exceeded": "exceed the context limit",
}


def findings(report: ReplayReport) -> list[FindingText]:
    """At most `MOST`, in order of weight."""
    found = [finding for find in _FINDERS if (finding := find(report)) is not None]
    return found[:MOST]


def _lost(report: ReplayReport) -> FindingText | None:
    counts = report.requests
    rejected = sum(counts.rejected.values())
    lost = rejected + counts.failed + counts.unfinished + counts.never_sent
    if not lost:
        return None
    parts = [
        f"{count:,} {_WHY.get(code, f'were rejected ({code})')}"
        for code, count in counts.rejected.items()
    ]
    if counts.failed:
        parts.append(f"{counts.failed:,} failed")
    if counts.unfinished:
        parts.append(f"{counts.unfinished:,} were still open when the run was cut off")
    if counts.never_sent:
        parts.append(
            f"{counts.never_sent:,} were never sent, because the run was cut off before they arrived, before the turn they follow had ended, or before their client had thought"
        )
    total = counts.submitted + counts.never_sent
    return FindingText(
        code="lost",
        figure=numbers.percent(lost / total),
        sentence=f"{numbers.percent(lost / total)} of the requests, {lost:,} of {total:,}, did not end as they should: {'; '.join(parts)}.",
        source="Counted; every request of the trace is in one of the counts.",
        warm=True,
    )


def _goodput(report: ReplayReport) -> FindingText | None:
    kept = report.goodput
    if kept is None:
        return None
    return FindingText(
        code="goodput",
        figure=f"{numbers.amount(kept.good_per_s)}/s",
        sentence=f"{goodput_text(kept)}.",
        source="Each request judged by itself against all limits; one that was rejected keeps nothing.",
        warm=not kept.meets,
    )


def _paging(report: ReplayReport) -> FindingText | None:
    memory, longest = report.memory, report.lengths.total_tokens.max
    running = report.batch.mean_running
    if not running or longest is None or report.config.settings.allocator != "paged":
        return None
    held = (memory.mean_used_tokens + memory.mean_unused_tokens) / running
    reserved = -(-int(longest) // memory.block_size) * memory.block_size
    if reserved < 1.05 * held:
        return None
    return FindingText(
        code="paging",
        figure=numbers.times(reserved / held),
        sentence=(
            f"Paging fits {numbers.times(reserved / held)} more requests than reserving the maximum on this trace: a running "
            f"request holds {held:,.0f} tokens of blocks on average, where a reservation would take {reserved:,}, the longest request."
        ),
        source="Mean allocated memory over mean running sequences of this replay, against its longest request; in hindsight, no second run.",
    )


def _waste(report: ReplayReport) -> FindingText | None:
    memory = report.memory
    share, tail = memory.used_share_of_allocated, memory.unused_tokens_per_sequence
    if share is None or tail is None:
        return None
    return FindingText(
        code="waste",
        figure=numbers.percent(1 - share),
        sentence=(
            f"{numbers.percent(1 - share)} of the allocated KV memory holds no token state: {tail:.1f} tokens a running sequence, where half a block, the "
            f"expected tail of a last block, is {memory.half_block_tokens:g}."
        ),
        source="Time-weighted means of memory by category; prompts that are not computed yet count as unused too.",
    )


def _reservation(report: ReplayReport) -> FindingText | None:
    """Of contiguous memory: where it goes."""
    memory, seen = report.memory, report.memory.hindsight
    share = memory.used_share_of_allocated
    allocator = report.config.settings.allocator
    if share is None or allocator == "paged":
        return None
    parts = [f"{numbers.percent(seen.token_states)} holds token states"]
    if seen.reserved is not None and seen.internal is not None:
        parts.append(f"{numbers.percent(seen.reserved)} waits for tokens still to come")
        parts.append(f"{numbers.percent(seen.internal)} is held and never used")
    if seen.rounding:
        parts.append(f"{numbers.percent(seen.rounding)} is lost to rounding")
    parts.append(f"{numbers.percent(seen.free)} is in no run")
    return FindingText(
        code="reservation",
        figure=numbers.percent(share),
        sentence=f"Only {numbers.percent(share)} of what contiguous memory ({allocator}) allocates holds token states. Of the whole pool, {', '.join(parts)}.",
        source="Time-weighted, in hindsight. The same replay with paged memory says what paging makes of it.",
        warm=True,
    )


def _latency(report: ReplayReport) -> FindingText | None:
    ttft, tpot = report.ttft_ms, report.tpot_ms
    if ttft.p50 is None or ttft.p99 is None:
        return None
    pace = ""
    if tpot.p50 is not None and tpot.p99 is not None:
        pace = (
            f"; then a token comes every {numbers.ms(tpot.p50)} for half of them, and every {numbers.ms(tpot.p99)} "
            "or faster for 99 of 100"
        )
    return FindingText(
        code="latency",
        figure=numbers.ms(ttft.p99),
        sentence=f"Half of the requests have their first token within {numbers.ms(ttft.p50)}, 99 of 100 within {numbers.ms(ttft.p99)}{pace}.",
        source=f"TTFT of {ttft.count:,} and TPOT of {numbers.counted(tpot.count, 'finished request')}; step times by the {report.config.cost_model} model.",
    )


def _limit(report: ReplayReport) -> FindingText | None:
    memory, series, speed = report.memory, report.over_time, report.throughput
    if not series.end_s:
        return None
    full = 0.0
    begin = 0.0
    for end, free, cached, waiting in zip(
        series.end_s, series.free_tokens, series.cached_tokens, series.waiting, strict=True
    ):
        if free + cached < (1 - NEARLY_FULL) * memory.pool_tokens and waiting >= 1:
            full += end - begin
        begin = end
    if full / series.end_s[-1] >= 0.01:
        return FindingText(
            code="full",
            figure=numbers.percent(full / series.end_s[-1]),
            sentence=f"Memory is the limit: for {numbers.percent(full / series.end_s[-1])} of the time the pool is more than {numbers.percent(NEARLY_FULL)} full while requests wait.".replace(
                "95%", "95 %"
            ),
            source="Bins of the timeline in which less than a twentieth of the pool is free or evictable and a request waits.",
            warm=True,
        )
    peak = memory.peak_blocks / memory.pool_blocks
    return FindingText(
        code="peak",
        figure=numbers.percent(peak),
        sentence=(
            f"The pool is never more than {numbers.percent(peak)} full: at its peak, after {numbers.seconds(memory.peak_s)}, {memory.peak_blocks:,} of "
            f"{memory.pool_blocks:,} blocks are held. A step runs {numbers.percent(speed.busy_share)} of the time, with {report.batch.mean_running:.1f} sequences on average."
        ),
        source="Largest number of blocks held at any step; busy time over simulated time.",
    )


def _preemptions(report: ReplayReport) -> FindingText | None:
    batch = report.batch
    if not batch.preemptions or batch.first_preemption_s is None:
        return None
    how = f"{batch.swaps:,} of them by swapping"
    if batch.swaps in (0, batch.preemptions):
        how = "always by swapping" if batch.swaps else "always by recomputing"
    return FindingText(
        code="preemptions",
        figure=numbers.count(batch.preemptions),
        sentence=(
            f"Running work was preempted {numbers.counted(batch.preemptions, 'time')}, {how}, first after {numbers.seconds(batch.first_preemption_s)}: "
            f"{batch.preemptions / report.requests.submitted:.2g} preemptions a request."
        ),
        source="Counted by the scheduler.",
        warm=True,
    )


def _prefixes(report: ReplayReport) -> FindingText | None:
    memory = report.memory
    if not memory.prefix_hit_share:
        return None
    return FindingText(
        code="prefixes",
        figure=numbers.percent(memory.prefix_hit_share),
        sentence=(
            f"{numbers.percent(memory.prefix_hit_share)} of the prompt tokens were in the prefix cache already: "
            f"{memory.prefix_hits_tokens:,} of {memory.prefix_queries_tokens:,} needed no computing."
        ),
        source="Hits at admission over prompt tokens whose content the trace knows.",
    )


def _cost(report: ReplayReport) -> FindingText | None:
    cost, speed = report.cost, report.throughput
    if cost is None or cost.usd_per_million_output_tokens is None:
        return None
    return FindingText(
        code="cost",
        figure=f"${cost.usd_per_million_output_tokens:.2f}",
        sentence=(
            f"A million output tokens cost ${cost.usd_per_million_output_tokens:.2f} at this load, prompts included, on {cost.devices} × {report.config.hardware.name} at "
            f"${cost.usd_per_device_hour:g} an hour each: {speed.output_tokens_per_s:,.0f} tokens a second come out and {speed.prompt_tokens_per_s:,.0f} go in."
        ),
        source=f"Price: {cost.price_source}, {cost.price_date}; paid over the whole simulated time, idle or not.",
    )


def _speed(report: ReplayReport) -> FindingText | None:
    speed = report.throughput
    if not speed.output_tokens or report.cost is not None:
        return None
    return FindingText(
        code="speed",
        figure=f"{numbers.count(speed.output_tokens_per_s)}/s",
        sentence=(
            f"The machine generates {speed.output_tokens_per_s:,.0f} tokens a second on this trace, and takes in {speed.prompt_tokens_per_s:,.0f}: "
            f"{numbers.counted(report.requests.done, 'request')} in {numbers.seconds(speed.simulated_s)}."
        ),
        source="Tokens over simulated time, from the first arrival to the last step's end.",
    )


_FINDERS: Final[tuple[Callable[[ReplayReport], FindingText | None], ...]] = (
    _lost, _goodput, _paging, _reservation, _preemptions, _limit, _latency, _prefixes, _cost, _waste, _speed,
)  # fmt: skip
