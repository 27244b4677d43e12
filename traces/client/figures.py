"""What a run of the load client found, as data: the shape of its `--json`. The parts that a replay has too are named alike, so that either can be laid over the other.

What has no samples is null, with a count of 0.
"""

from typing import Any

from msgspec import Struct

from traces.judge import Goodput
from traces.schema import BadRow
from traces.shaping import Shaping
from traces.stats import Spread


class BenchSettings(Struct, frozen=True, kw_only=True):
    """What decides a run, beside the trace and the server."""

    endpoint: str
    ignore_eos: bool
    temperature: float
    timeout_s: float
    duration_s: float | None
    warm_up: int
    shaping: Shaping


class TargetFigures(Struct, frozen=True, kw_only=True):
    """The server under test."""

    url: str
    model: str
    server: str | None
    """What it says it is."""
    tokens_per_word: float
    prompt_offset_tokens: float
    measured_by: str


class BenchTrace(Struct, frozen=True, kw_only=True):
    """What was read."""

    name: str
    format: str
    sha256: str
    """Of the decompressed bytes, up to where reading stopped."""
    requests: int
    bad: dict[str, int]
    bad_rows: list[BadRow]


class BenchCounts(Struct, frozen=True, kw_only=True):
    """`submitted == done + sum(failed) + unfinished`."""

    submitted: int
    done: int
    failed: dict[str, int]
    """By kind of failure."""
    unfinished: int
    """Open when the run was interrupted."""
    never_sent: int
    """Read, and due after the end of the run, or waiting for a turn that did not end."""
    interrupted: bool
    said: dict[str, str]
    """The first message of a kind of failure."""


class BenchThroughput(Struct, frozen=True, kw_only=True):
    """Over the time from the first due request to the last answer's end."""

    measured_s: float
    prompt_tokens: int
    """Of requests that are done, as the server counted."""
    output_tokens: int
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    most_open: int
    """Requests under way at once."""
    mean_open: float
    connections: int


class CachedPrompts(Struct, frozen=True, kw_only=True):
    """What the server's prefix cache held of the prompts, of requests that are done and whose usage says so."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    share: float
    """Of these prompt tokens."""


class Honesty(Struct, frozen=True, kw_only=True):
    """How far the run was from what was asked."""

    late_ms: Spread
    """From when a request was due to when the client began to send it; in the latencies already."""
    late_over_10ms: int
    prompt_error: float | None
    """Mean of counted over asked prompt tokens, less 1; null where the server does not count."""
    output_error: float | None
    """Likewise of answers."""
    without_usage: int
    """Requests that are done and whose tokens the server did not count: their TPOT takes an event for a token."""


class BenchDistributions(Struct, frozen=True, kw_only=True):
    """As of a replay; `gap_ms` is of the times between deliveries of an answer, read from a histogram of bins 1 % wide."""

    share: list[float]
    ttft_ms: list[float]
    tpot_ms: list[float]
    e2e_ms: list[float]
    gap_ms: list[float]


class BenchSeries(Struct, frozen=True, kw_only=True):
    """Means in each bin; the last may be shorter."""

    end_s: list[float]
    open_requests: list[float]
    sent_per_s: list[float]
    done_per_s: list[float]
    failed_per_s: list[float]
    events_per_s: list[float]
    """Deliveries of text; most servers send one a token."""


class Compared(Struct, frozen=True, kw_only=True):
    """One figure, measured and predicted."""

    name: str
    unit: str
    measured: float | None
    predicted: float | None
    error: float | None
    """Predicted over measured, less 1."""


class LeftOut(Struct, frozen=True, kw_only=True):
    """A request that one side answered, and the other did not."""

    line: int | None
    """Of the trace; null where only a replay has it."""
    measured: str
    """`done`, or what became of it."""
    predicted: str


class Answers(Struct, frozen=True, kw_only=True):
    """Over which requests latencies are compared. `measured + predicted == 2 * compared + left_out` where requests could be matched."""

    measured: int
    """Answers of this run."""
    predicted: int
    """Answers of the other."""
    compared: int | None
    """Requests that both answered, and over which latencies are compared; null: there was no table to match them by, each side has its own."""
    left_out: int | None
    """Answers of one side only."""
    listed: list[LeftOut]
    """The first of these."""


class Against(Struct, frozen=True, kw_only=True):
    """A prediction, or another run, laid over the measurement."""

    kind: str
    title: str
    differences: list[str]
    """In what its workload is another one."""
    answers: Answers
    figures: list[Compared]
    distributions: dict[str, Any]
    goodput_apart: str | None = None
    """Why the goodput of this run has nothing beside it, as a sentence."""

    @property
    def label(self) -> str:
        """What its figures are called."""
        return "predicted" if self.kind == "replay" else "other run"


class BenchFinding(Struct, frozen=True, kw_only=True):
    """A sentence that the figures carry."""

    code: str
    figure: str
    sentence: str
    source: str
    warm: bool = False


class BenchReport(Struct, frozen=True, kw_only=True):
    """Everything that a run found."""

    kind: str = "bench"
    version: int = 1
    target: TargetFigures
    settings: BenchSettings
    trace: BenchTrace
    requests: BenchCounts
    throughput: BenchThroughput
    honesty: Honesty
    ttft_ms: Spread
    """From when the request was due to its first token, seen by the client."""
    tpot_ms: Spread
    """(last token - first token) / (tokens - 1), of requests of two tokens or more."""
    e2e_ms: Spread
    """From when the request was due to its last token."""
    over_time: BenchSeries
    distributions: BenchDistributions
    against: Against | None
    goodput: Goodput | None = None
    """As of a replay, where promises were given."""
    cached: CachedPrompts | None = None
    """Null where no usage says so."""
    findings: list[BenchFinding] = []
