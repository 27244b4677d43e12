"""How a run kept its promises, in words. Computes nothing but ratios."""

from traces.judge import Goodput
from traces.report import numbers
from traces.slo import Slo


def limits_text(slo: Slo) -> str:
    """What one request must keep to be good: `TTFT within 2 s and TPOT within 60 ms`."""
    parts = []
    for metric in slo.metrics:
        limit = slo.limit_ns(metric)
        assert limit is not None
        parts.append(f"{metric.upper()} within {numbers.ms(limit / 1e6)}")
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def goodput_text(kept: Goodput) -> str:
    """Requests a second, their share, each limit by itself, and the verdict; without a full stop."""
    if not kept.judged:
        return f"Of no request it is known whether it keeps {limits_text(kept.slo)}: the run ends before"
    share = numbers.percent(kept.good_share)
    text = f"{numbers.amount(kept.good_per_s)} requests a second keep {limits_text(kept.slo)}"
    if len(kept.within) > 1:
        each = ", ".join(f"{metric.upper()} {count:,}" for metric, count in kept.within.items())
        text += f" at once, {share}: {kept.good:,} of {kept.judged:,}, by themselves {each}"
    else:
        text += f", {share}: {kept.good:,} of {kept.judged:,}"
    return f"{text}; the promise {kept.slo} is {'kept' if kept.meets else 'not kept'}"
