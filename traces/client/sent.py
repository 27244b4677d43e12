"""Why a run sent another number of requests than it read, in words. Knows the report; prints nothing."""

from traces.client.figures import BenchReport
from traces.report import numbers


def read_text(report: BenchReport) -> str:
    """How many requests were read, and where reading stopped."""
    limit, read = report.settings.shaping.limit, report.trace.requests
    asked = f", the first that --limit {read:,} takes" if limit == read else ""
    return f"{numbers.counted(read, 'request')} read{asked}"


def never_text(report: BenchReport) -> str:
    """How many were never sent and why; empty where all were."""
    counts, ends = report.requests, report.settings.duration_s
    if not counts.never_sent:
        return ""
    reasons = ["the run was interrupted"] if counts.interrupted else []
    if ends is not None:
        reasons.append(f"due after --duration-s {ends:g}")
    if not reasons:
        reasons.append("after a turn that was not sent")
    return f"{counts.never_sent:,} never sent ({' or '.join(reasons)})"


def shaped_text(report: BenchReport) -> str:
    """What the flags that shape a trace made of the requests that were read; empty where as many were to be sent."""
    counts, shaping, read = report.requests, report.settings.shaping, report.trace.requests
    kept = counts.submitted + counts.never_sent
    flags = [f"--rate-scale {shaping.rate_scale:g}"] if shaping.rate_scale != 1 else []
    if shaping.resample:
        flags.append("--resample")
    if kept == read or not flags:
        return ""
    return f"{' and '.join(flags)} made {kept:,} of the {read:,} read"
