"""A prediction laid over a measurement: the JSON of a replay, or of another run. Reads what both have, and ignores the rest."""

from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from engine.core.errors import ConfigError
from traces.client.figures import Against, BenchThroughput, BenchTrace, Compared
from traces.client.measure import Latencies
from traces.shaping import Shaping
from traces.stats import Spread

LATENCIES: Final = (("TTFT", "ttft"), ("TPOT", "tpot"), ("end to end", "e2e"))
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


def read_prediction(path: Path) -> Prediction:
    """The report in a file.

    Raises:
        ConfigError: it cannot be read, or is no report of a replay or a run.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Prediction)
    except OSError as error:
        raise ConfigError(f"--against {path}: cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(
            f"--against {path}: this is no JSON of `kilburn replay --json` or `kilburn bench --json` ({error})"
        ) from None


def differences(
    prediction: Prediction, trace: BenchTrace, shaping: Shaping, done: int
) -> list[str]:
    """In what the other workload is not this one, `done` requests long, in half sentences.

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
    if prediction.e2e_ms.count != done:
        found.append(f"{prediction.e2e_ms.count:,} requests done instead of {done:,}")
    return found


def lay_over(
    prediction: Prediction,
    measured: Latencies,
    speed: BenchThroughput,
    trace: BenchTrace,
    shaping: Shaping,
) -> Against:
    """Each figure beside the other's."""
    figures = []
    for title, name in LATENCIES:
        here: Spread = getattr(measured, name)
        there: Spread = getattr(prediction, f"{name}_ms")
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
    return Against(
        kind=prediction.kind,
        title=prediction.title,
        differences=differences(prediction, trace, shaping, measured.e2e.count),
        figures=figures,
        distributions=msgspec.to_builtins(prediction.distributions),
    )


def _compared(name: str, unit: str, measured: float | None, predicted: float | None) -> Compared:
    error = None
    if measured and predicted is not None:
        error = predicted / measured - 1
    return Compared(name=name, unit=unit, measured=measured, predicted=predicted, error=error)
