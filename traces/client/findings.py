"""What a run of the load client says, in plain sentences, those that went wrong first."""

from collections.abc import Callable
from typing import Final

from traces.client.against import told
from traces.client.figures import BenchFinding, BenchReport, CachedPrompts
from traces.client.promises import GOOD_RATE, GOOD_SHARE, judged_text, shown
from traces.report import numbers
from traces.report.promises import goodput_text

MOST: Final = 6


def findings(report: BenchReport) -> list[BenchFinding]:
    """At most `MOST`."""
    found = [finding for find in _FINDERS if (finding := find(report)) is not None]
    return found[:MOST]


def _lost(report: BenchReport) -> BenchFinding | None:
    counts = report.requests
    failed = sum(counts.failed.values())
    if not failed and not counts.unfinished:
        return None
    kinds = ", ".join(f"{n:,} {kind}" for kind, n in counts.failed.items())
    parts = [f"{failed:,} failed ({kinds})"] if failed else []
    if counts.unfinished:
        parts.append(f"{counts.unfinished:,} were still open at the end")
    share = numbers.percent((failed + counts.unfinished) / counts.submitted)
    return BenchFinding(
        code="lost",
        figure=share,
        sentence=f"{share} of the {numbers.counted(counts.submitted, 'request')} did not end well: {'; '.join(parts)}.",
        source="Counted by the client; they are in no latency.",
        warm=True,
    )


def _late(report: BenchReport) -> BenchFinding | None:
    honesty, sent = report.honesty, report.requests.submitted
    if honesty.late_over_10ms < max(1, 0.01 * sent):
        return None
    return BenchFinding(
        code="late",
        figure=numbers.percent(honesty.late_over_10ms / sent),
        sentence=(
            f"The client itself was behind: {numbers.percent(honesty.late_over_10ms / sent)} of the requests were sent more than 10 ms late, the latest "
            f"by {numbers.ms(honesty.late_ms.max)}."
        ),
        source="From due to sent; latencies count from due, so they hold this delay. Use a faster or less busy client machine.",
        warm=True,
    )


def _goodput(report: BenchReport) -> BenchFinding | None:
    kept, against = report.goodput, report.against
    if kept is None:
        return None
    beside = [f for f in against.figures if f.name in (GOOD_RATE, GOOD_SHARE)] if against else []
    other = ""
    if against is not None and beside:
        rate, share = (shown(f, f.predicted) for f in beside)
        what = "The prediction" if against.kind == "replay" else "The other run"
        other = f" {what} has {rate} a second, {share}."
    return BenchFinding(
        code="goodput",
        figure=f"{numbers.amount(kept.good_per_s)}/s",
        sentence=f"{goodput_text(kept)}.{other}",
        source=f"Each request judged by itself against all limits, from when it was due. {judged_text(report)}",
        warm=not kept.meets,
    )


def _against(report: BenchReport) -> BenchFinding | None:
    against = report.against
    if against is None:
        return None
    errors = {f.name: f.error for f in against.figures if f.error is not None}
    shown = [
        (name, errors[name])
        for name in ("TTFT p50", "TPOT p50", "end to end p50")
        if name in errors
    ]
    if not shown:
        return None
    worst = max(shown, key=lambda item: abs(item[1]))
    said = ", ".join(f"{name} {_signed(error)}" for name, error in shown)
    what = "The prediction" if against.kind == "replay" else "The other run"
    other = f" It was made with {', '.join(against.differences)}." if against.differences else ""
    answers = told(against)
    if answers:
        other += f" {answers}"
    return BenchFinding(
        code="against",
        figure=_signed(worst[1]),
        sentence=f"{what} ({against.title}) differs from the measurement by {said}.{other}",
        source="The other over the measured figure, less 1. A replay's times are the server's, without network and client.",
        warm=bool(against.differences or answers),
    )


def _signed(error: float) -> str:
    return ("+" if error >= 0 else "−") + numbers.percent(abs(error))


def cached_text(cached: CachedPrompts) -> str:
    """How much of the prompts was cached."""
    return f"{numbers.percent(cached.share)} of prompt tokens were cached"


def _cached(report: BenchReport) -> BenchFinding | None:
    cached = report.cached
    if cached is None or not cached.cached_tokens:
        return None
    return BenchFinding(
        code="cached",
        figure=numbers.percent(cached.share),
        sentence=(
            f"{cached_text(cached)}: the server had computed them for this run's earlier requests or for those of a run before, and their first tokens come sooner for that."
        ),
        source=(
            f"{cached.cached_tokens:,} of {cached.prompt_tokens:,} tokens, as the usage of {numbers.counted(cached.requests, 'answer')} says. "
            "Another --seed draws other words, which no earlier run has left there."
        ),
    )


def _latency(report: BenchReport) -> BenchFinding | None:
    ttft, tpot = report.ttft_ms, report.tpot_ms
    if ttft.p50 is None or ttft.p99 is None:
        return None
    pace = ""
    if tpot.p50 is not None and tpot.p99 is not None:
        pace = f"; then a token comes every {numbers.ms(tpot.p50)} for half of them, and every {numbers.ms(tpot.p99)} or faster for 99 of 100"
    return BenchFinding(
        code="latency",
        figure=numbers.ms(ttft.p99),
        sentence=f"Half of the requests have their first token within {numbers.ms(ttft.p50)}, 99 of 100 within {numbers.ms(ttft.p99)}{pace}.",
        source=f"Seen by the client, counted from when each request was due; of {numbers.counted(ttft.count, 'finished request')}.",
    )


def _speed(report: BenchReport) -> BenchFinding | None:
    speed = report.throughput
    if not report.requests.done:
        return None
    return BenchFinding(
        code="speed",
        figure=f"{numbers.count(speed.output_tokens_per_s)}/s",
        sentence=(
            f"The server generated {speed.output_tokens_per_s:,.0f} tokens a second and took in {speed.prompt_tokens_per_s:,.0f}, with "
            f"{speed.mean_open:.1f} requests open on average and {speed.most_open:,} at most."
        ),
        source=f"Tokens as the server counted them, over {numbers.seconds(speed.measured_s)} from the first due request to the last answer's end.",
    )


def _on_time(report: BenchReport) -> BenchFinding | None:
    late = report.honesty.late_ms
    if late.p99 is None or _late(report) is not None:
        return None
    return BenchFinding(
        code="on_time",
        figure=numbers.ms(late.p99),
        sentence=f"The client kept to the trace: 99 of 100 requests were sent within {numbers.ms(late.p99)} of when they were due, the latest after {numbers.ms(late.max)}.",
        source="From due to sent, of all requests; no request waited for another's answer.",
    )


_FINDERS: Final[tuple[Callable[[BenchReport], BenchFinding | None], ...]] = (
    _lost, _late, _goodput, _against, _cached, _latency, _speed, _on_time,
)  # fmt: skip
