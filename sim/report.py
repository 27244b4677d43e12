"""What a replay found, as data: the shape of `--json`. Computes figures from a ledger and a timeline; prints nothing.

No figure is NaN: what has no samples is null, with a count of 0. The same input gives the same bytes.
"""

import json
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.core.errors import ConfigError, InvariantError
from sim.config import ReplayConfig
from sim.hardware import Hardware
from sim.models import ModelShape
from sim.pool import PoolBudget
from sim.roofline import Efficiency
from traces.schema import BadRow


class Resolved(Struct, frozen=True, kw_only=True):
    """Every assumption of a replay, nothing left to a default."""

    settings: ReplayConfig
    model: ModelShape
    hardware: Hardware
    cost_model: str
    efficiency: Efficiency
    pool: PoolBudget
    max_context: int


class TraceSummary(Struct, frozen=True, kw_only=True):
    """What was read. `rows == requests + sum(bad)` for a trace read to its end."""

    name: str
    format: str
    sha256: str
    """Of the decompressed bytes, up to where reading stopped."""
    rows: int
    requests: int
    bad: dict[str, int]
    """Rows that are no requests, by code."""
    bad_rows: list[BadRow]
    """The first of them."""
    first_arrival_s: float
    last_arrival_s: float
    span_s: float


class Counts(Struct, frozen=True, kw_only=True):
    """`submitted == done + sum(rejected) + failed + unfinished`."""

    submitted: int
    done: int
    rejected: dict[str, int]
    failed: int
    unfinished: int


class Distribution(Struct, frozen=True, kw_only=True):
    """A sample's size and shape; all null but the count where it is empty. Percentiles interpolate linearly."""

    count: int
    mean: float | None = None
    min: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


class Throughput(Struct, frozen=True, kw_only=True):
    """Over the simulated time from the first arrival to the last step's end."""

    simulated_s: float
    busy_share: float
    """Share of that time during which a step ran."""
    steps: int
    prompt_tokens: int
    """Of requests that are done."""
    output_tokens: int
    """All that were produced."""
    computed_tokens: int
    """Positions computed, recomputation after preemption included."""
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float


class Batch(Struct, frozen=True, kw_only=True):
    """Sequences in a step, and queues; means are time-weighted."""

    max: int
    mean_running: float
    mean_waiting: float
    preemptions: int


class Memory(Struct, frozen=True, kw_only=True):
    """The KV pool by category, time-weighted over the whole run, in token positions. The three means add up to the pool."""

    block_size: int
    pool_blocks: int
    pool_tokens: int
    peak_blocks: int
    mean_used_tokens: float
    """Hold a computed token state."""
    mean_unused_tokens: float
    """In a held block, not (yet) used."""
    mean_free_tokens: float
    used_share_of_allocated: float | None
    """Integral of used over integral of allocated; null when nothing was ever allocated."""


class Series(Struct, frozen=True, kw_only=True):
    """Time-weighted means in each bin; the last may be shorter."""

    end_s: list[float]
    used_tokens: list[float]
    unused_tokens: list[float]
    free_tokens: list[float]
    running: list[float]
    waiting: list[float]
    busy: list[float]


class ReplayReport(Struct, frozen=True, kw_only=True):
    """Everything a replay found."""

    kind: str = "replay"
    version: int = 1
    config_sha256: str
    config: Resolved
    trace: TraceSummary
    requests: Counts
    throughput: Throughput
    ttft_ms: Distribution
    """Arrival to first token, of requests that are done; server side, no network."""
    tpot_ms: Distribution
    """(last token - first token) / (tokens - 1), of requests that are done with two tokens or more."""
    e2e_ms: Distribution
    """Arrival to last token, of requests that are done."""
    batch: Batch
    memory: Memory
    over_time: Series


def distribution(sample: NDArray[np.float64]) -> Distribution:
    """Size and shape of a sample, [n] float64."""
    if not len(sample):
        return Distribution(count=0)
    p50, p90, p99 = np.percentile(sample, [50, 90, 99]).tolist()
    return Distribution(
        count=len(sample),
        mean=float(sample.mean()),
        min=float(sample.min()),
        p50=p50,
        p90=p90,
        p99=p99,
        max=float(sample.max()),
    )


def encode(report: ReplayReport) -> bytes:
    """Indented JSON with a final newline.

    Raises:
        InvariantError: a figure is NaN or infinite.
    """
    try:
        text = json.dumps(msgspec.to_builtins(report), allow_nan=False, indent=1)
    except ValueError as error:
        raise InvariantError(f"a figure of the report is not a number: {error}") from None
    return text.encode() + b"\n"


def write_report(report: ReplayReport, path: Path) -> None:
    """Writes the JSON to a file.

    Raises:
        ConfigError: the file cannot be written.
    """
    data = encode(report)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"--json {path}: cannot be written: {error.strerror}") from None
