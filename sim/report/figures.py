"""What a replay found, as data: the shape of `--json`. Computes nothing and prints nothing.

What has no samples is null, with a count of 0.
"""

from msgspec import Struct

from sim.config import ReplayConfig
from sim.fitted import Fit
from sim.hardware import Hardware
from sim.models import ModelShape
from sim.pool import PoolBudget
from sim.roofline import Efficiency
from sim.step_table import StepTable
from traces.judge import Goodput
from traces.schema import BadRow
from traces.stats import Spread


class Resolved(Struct, frozen=True, kw_only=True):
    """Every assumption of a replay, nothing left to a default."""

    settings: ReplayConfig
    model: ModelShape
    hardware: Hardware
    cost_model: str
    efficiency: Efficiency
    block_efficiency: float
    """What reading KV blocks of this size reaches, of the best size."""
    block_table: str
    """Where that comes from."""
    fit: Fit | None = None
    """Where `cost_model` is a fit: steps cost what this says, whatever hardware and model."""
    table: StepTable | None = None
    """The same of a table."""
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
    never_sent: int
    """Read and not submitted when the run was cut off: they waited for their arrival, for an open request of their session, or for their think time to pass."""


class Throughput(Struct, frozen=True, kw_only=True):
    """Over the simulated time from the first arrival to the last step's end."""

    simulated_s: float
    busy_share: float
    """Share of that time during which a step ran."""
    steps: int
    plans: int
    """Steps, where those that were leapt over together count as one."""
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
    first_preemption_s: float | None
    swaps: int
    """Of the preemptions, those that moved blocks to the host."""
    link_busy_share: float | None
    """Share of time that a direction of a link carried blocks; null without a host pool."""


class Hindsight(Struct, frozen=True, kw_only=True):
    """Where memory went, known once it is over (Kwon et al., figure 2): shares of the pool over the whole run, that add up to 1."""

    token_states: float
    reserved: float | None
    """Held for positions that the same sequence used later; null for paged memory, which holds no run of them."""
    internal: float | None
    """Held for a sequence, and never used by it."""
    unused: float
    """Both: held and not used at the moment."""
    rounding: float
    """Lost because runs are powers of two."""
    free: float
    """In no run. Of contiguous memory, external waste as far as somebody waits for it."""


class Memory(Struct, frozen=True, kw_only=True):
    """The KV pool by category, time-weighted over the whole run, in token positions. The four means add up to the pool, of all replicas."""

    block_size: int
    pool_blocks: int
    """Of one replica."""
    pool_tokens: int
    """Of all replicas."""
    peak_blocks: int
    """Held at once, of one replica."""
    peak_s: float
    """When so many were first held."""
    peak_replica: int
    """Of which replica, from 0."""
    mean_used_tokens: float
    """Hold a computed token state."""
    mean_unused_tokens: float
    """In a held block, not (yet) used."""
    mean_cached_tokens: float
    """Of ended sequences, kept for others to share, evictable."""
    mean_free_tokens: float
    used_share_of_allocated: float | None
    """Integral of used over integral of allocated; null when nothing was ever allocated."""
    unused_tokens_per_sequence: float | None
    """Mean of the unused over mean running sequences: the tail of last blocks, and what is allocated a step ahead. Paged memory is
    expected to waste half a block; null when nothing ran, or memory is not paged."""
    half_block_tokens: float
    """Half a block, to lay beside it."""
    hindsight: Hindsight
    prefix_queries_tokens: int
    """Prompt tokens of admitted requests whose content is known."""
    prefix_hits_tokens: int
    """Of these, the ones that were in the cache."""
    prefix_hit_share: float | None


class Series(Struct, frozen=True, kw_only=True):
    """Time-weighted means in each bin; the last may be shorter."""

    end_s: list[float]
    used_tokens: list[float]
    unused_tokens: list[float]
    cached_tokens: list[float]
    free_tokens: list[float]
    running: list[float]
    waiting: list[float]
    busy: list[float]
    preemptions: list[int]
    """In the bin, of all replicas."""


class Distributions(Struct, frozen=True, kw_only=True):
    """The whole distributions: at place i the value that a share of `share[i]` does not exceed. Empty where there are no samples."""

    share: list[float]
    ttft_ms: list[float]
    tpot_ms: list[float]
    e2e_ms: list[float]


class Lengths(Struct, frozen=True, kw_only=True):
    """Tokens of the requests that are done."""

    prompt_tokens: Spread
    output_tokens: Spread
    total_tokens: Spread


class Cost(Struct, frozen=True, kw_only=True):
    """Of all devices over the simulated time, idle ones included."""

    usd_per_hour: float
    usd_per_million_output_tokens: float | None
    usd_per_million_tokens: float | None
    """Prompt and output tokens of what was served."""
    devices: int
    usd_per_device_hour: float
    price_date: str
    price_source: str


class FindingText(Struct, frozen=True, kw_only=True):
    """A sentence that the figures carry."""

    code: str
    figure: str
    sentence: str
    source: str
    """What it was computed from."""
    warm: bool = False
    """Something went wrong, or is about to."""


class ReplayReport(Struct, frozen=True, kw_only=True):
    """Everything a replay found."""

    kind: str = "replay"
    version: int = 1
    config_sha256: str
    config: Resolved
    trace: TraceSummary
    requests: Counts
    throughput: Throughput
    ttft_ms: Spread
    """Arrival to first token, of requests that are done; server side, no network."""
    tpot_ms: Spread
    """(last token - first token) / (tokens - 1), of requests that are done with two tokens or more."""
    e2e_ms: Spread
    """Arrival to last token, of requests that are done."""
    batch: Batch
    memory: Memory
    over_time: Series
    distributions: Distributions
    lengths: Lengths
    goodput: Goodput | None = None
    """Where limits were given."""
    cost: Cost | None
    """Null where the hardware has no price."""
    biases: list[str]
    """What the figures leave out, in sentences."""
    findings: list[FindingText] = []
    """In order of weight."""
