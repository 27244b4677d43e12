"""A prediction laid over a measurement: the JSON of a replay, or of another run. Reads what both have, and ignores the rest."""

from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from engine.core.errors import ConfigError
from traces.client.figures import Against, Answers, BenchThroughput, BenchTrace, Compared
from traces.client.matched import Rows, match, read_rows
from traces.client.measure import Latencies
from traces.client.outcomes import Outcomes
from traces.client.promises import compare
from traces.judge import Goodput
from traces.report import numbers
from traces.shaping import Shaping
from traces.stats import Spread

LATENCIES: Final = (("TTFT", "ttft"), ("TPOT", "tpot"), ("end to end", "e2e"))
SHOWN_LINES: Final = 5
PERCENTILES: Final = ("p50", "p90", "p99", "mean")


class _Named(Struct, frozen=True):
    name: str = ""


class _Settings(Struct, frozen=True):
    shaping: dict[str, Any] = {}


class _Config(Struct, frozen=True):
    model: _Named = _Named()
    hardware: _Named = _Named()
    settings: _Settings = _Settings()


class _Target(Struct, frozen=True):
    model: str = ""
    url: str = ""


class _Trace(Struct, frozen=True):
    sha256: str
    name: str = ""
    format: str = ""


class _Speed(Struct, frozen=True):
    requests_per_s: float
    output_tokens_per_s: float


class _Distributions(Struct, frozen=True):
    share: list[float]
    ttft_ms: list[float]
    tpot_ms: list[float]
    e2e_ms: list[float]


class _Kind(Struct, frozen=True):
    kind: str = ""


class Prediction(Struct, frozen=True):
    """What is read of a report."""

    kind: str
    trace: _Trace
    throughput: _Speed
    ttft_ms: Spread
    tpot_ms: Spread
    e2e_ms: Spread
    distributions: _Distributions
    config: _Config = _Config()
    target: _Target = _Target()
    settings: _Settings = _Settings()
    goodput: Goodput | None = None

    @property
    def shaping(self) -> dict[str, Any]:
        """What was asked of its trace."""
        return self.settings.shaping if self.kind == "bench" else self.config.settings.shaping

    @property
    def title(self) -> str:
        """What made it."""
        if self.kind == "bench":
            return f"{self.target.model} at {self.target.url}"
        return f"{self.config.model.name} on {self.config.hardware.name}"


class Other(NamedTuple):
    """What is laid over a run."""

    report: Prediction
    rows: Rows | None = None
    """Its requests, where their table lies beside it."""


def read_prediction(path: Path) -> Other:
    """The report in a file, and the table of requests beside it.

    Raises:
        ConfigError: it cannot be read, or is no report of a replay or a run.
    """
    try:
        report = msgspec.json.decode(path.read_bytes(), type=Prediction)
    except OSError as error:
        raise ConfigError(f"--against {path}: cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, RecursionError):
        raise ConfigError(
            f"--against {path}: this is {_what(path)}; needed is what `kilburn replay --json FILE` or `kilburn bench --json FILE` writes"
        ) from None
    return Other(report, read_rows(path, report.kind, report.e2e_ms))


def _what(path: Path) -> str:
    """What a file is that is no report of either kind."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Kind)
    except (msgspec.DecodeError, RecursionError):
        return "no JSON of a run"
    match found.kind:
        case "sweep" | "plan" as command:
            return f"the JSON of a `kilburn {command}`, which holds no single run"
        case "replay" | "bench" as command:
            return f"JSON of a `kilburn {command}` that lacks figures, or has them damaged or of another version"
        case _:
            return "JSON, but not of a run"


def differences(prediction: Prediction, trace: BenchTrace, shaping: Shaping) -> list[str]:
    """In what the other workload is not this one, in half sentences.

    A trace that was not read to its end has another digest, so it is another one only if its name differs too.
    """
    other = prediction.trace
    found = []
    if other.sha256 != trace.sha256 and (other.name, other.format) != (trace.name, trace.format):
        found.append(f"another trace, {other.name}")
    here = msgspec.to_builtins(shaping)
    for name, value in prediction.shaping.items():
        if name in here and name != "limit" and here[name] != value:
            found.append(f"{name.replace('_', ' ')} {value} instead of {here[name]}")
    return found


def lay_over(
    other: Other,
    measured: Latencies,
    outcomes: Outcomes,
    speed: BenchThroughput,
    trace: BenchTrace,
    shaping: Shaping,
    kept: Goodput | None = None,
) -> Against:
    """Each figure beside the other's; latencies over the requests that both answered, where these can be told, goodput over all that each side judged."""
    prediction, figures = other.report, []
    apart = differences(prediction, trace, shaping)
    answers = Answers(
        measured=measured.e2e.count,
        predicted=prediction.e2e_ms.count,
        compared=None,
        left_out=None,
        listed=[],
    )
    ours = {f"{name}_ms": getattr(measured, name) for _, name in LATENCIES}
    theirs = {f"{name}_ms": getattr(prediction, f"{name}_ms") for _, name in LATENCIES}
    if other.rows is not None and not apart:
        found = match(other.rows, prediction.kind, outcomes)
        # Turns of sessions are sent when their server is done, so most of a replay's have no match: then all answers say more.
        if 2 * found.common >= max(1, min(answers.measured, answers.predicted)):
            ours, theirs = found.here, found.there
            answers = replace(
                answers, compared=found.common, left_out=found.left_out, listed=found.listed
            )
    for title, name in LATENCIES:
        here, there = ours[f"{name}_ms"], theirs[f"{name}_ms"]
        for percentile in PERCENTILES:
            figures.append(
                _compared(
                    f"{title} {percentile}",
                    "ms",
                    getattr(here, percentile),
                    getattr(there, percentile),
                )
            )
    speeds = prediction.throughput
    figures.append(
        _compared("output tokens", "/s", speed.output_tokens_per_s, speeds.output_tokens_per_s)
    )
    figures.append(_compared("requests", "/s", speed.requests_per_s, speeds.requests_per_s))
    goodput, goodput_apart = compare(kept, prediction.goodput)
    return Against(
        kind=prediction.kind,
        title=prediction.title,
        differences=apart,
        answers=answers,
        figures=figures + goodput,
        distributions=msgspec.to_builtins(prediction.distributions),
        goodput_apart=goodput_apart,
    )


def told(against: Against) -> str:
    """Of how many answers latencies are compared, as a sentence; empty where both sides have the same and nothing is left out."""
    a = against.answers
    there = "the prediction" if against.kind == "replay" else "the other run"
    verb = "is" if a.measured == 1 else "are"
    whose = (
        f"There {verb} {numbers.counted(a.measured, 'answer')} here and {a.predicted:,} in {there}"
    )
    if a.compared is None or a.left_out is None:
        if a.measured == a.predicted:
            return ""
        return f"{whose}; latencies are of all that each has, so they are not of the same requests."
    if not a.left_out:
        return ""
    lines = [f"{each.line:,}" for each in a.listed if each.line is not None][:SHOWN_LINES]
    more = " and others" if a.left_out > len(lines) else ""
    where = f" (line{'s' * (len(lines) > 1)} {', '.join(lines)}{more})" if lines else ""
    return (
        f"{whose}; latencies are of the {numbers.counted(a.compared, 'request')} that both answered, "
        f"{a.left_out:,} left out{where}."
    )


def _compared(name: str, unit: str, measured: float | None, predicted: float | None) -> Compared:
    error = None
    if measured and predicted is not None:
        error = predicted / measured - 1
    return Compared(name=name, unit=unit, measured=measured, predicted=predicted, error=error)
