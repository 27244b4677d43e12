"""What `kilburn plan` answers, as data: the shape of its `--json`. Computes nothing and prints nothing.

Two questions share it: how many replicas a trace needs (`mode` is "fleet"), and how many users of a session trace fit a fixed
machine ("users"). What a question has no part in is null.
"""

from typing import Literal

from msgspec import Struct

from sim.report.figures import Hindsight
from traces.judge import ClauseFigure
from traces.slo import Slo
from traces.stats import Spread


class Reason(Struct, frozen=True, kw_only=True):
    """Why a machine cannot do it."""

    code: Literal["no_fit", "rejected", "alone", "replicas", "setting", "no_users"]
    """`no_fit`: the model, or a pool beside it. `rejected`: too many requests can never run. `alone`: misses even on an idle machine.
    `replicas`: not with as many as were allowed. `setting`: one does not apply. `no_users`: not even one."""
    message: str


class Cost(Struct, frozen=True, kw_only=True):
    """Of all replicas, over the simulated time."""

    usd_per_hour: float
    usd_per_million_output_tokens: float | None
    usd_per_million_tokens: float | None
    """Prompt and output tokens of what was served."""


class Point(Struct, frozen=True, kw_only=True):
    """One simulated fleet under the trace."""

    replicas: int
    users: int | None = None
    """Sessions at once, where that was the question."""
    meets: bool
    stopped_s: float | None
    """The simulated time at which the run was given up, because the promises could not be kept any more."""
    clauses: list[ClauseFigure]
    good_share: float | None
    """Requests that kept every limit at once."""
    submitted: int
    done: int
    rejected: dict[str, int]
    unfinished: int
    undecided: int
    """Requests of which it was not known yet whether they keep every limit when the run ended; they count neither way."""
    warm_up: int
    """Requests of the warm-up, which no promise covers."""
    preemptions: int
    ttft_ms: Spread
    tpot_ms: Spread
    e2e_ms: Spread
    """Of requests that are done."""
    simulated_s: float
    busy_share: float
    requests_per_s: float
    output_tokens_per_s: float
    cost: Cost | None
    """Null without a price, or for a run that was given up."""
    memory: Hindsight | None = None
    """Where KV memory went; null for a run that was given up."""


class LowerBound(Struct, frozen=True, kw_only=True):
    """What no fleet does with less, whatever scales it, whatever routes and whatever it knows of the future. Proof: docs/plan.md."""

    replica_hours: float
    """Of replicas that are there only while they work; a replica is all the devices that it is spread over."""
    exempt: int
    """Requests that it may refuse, since so many may break the promises: the costliest are not in it."""
    peak_replicas: int | None
    """So many are needed at once; null for sessions, whose requests wait for others."""
    peak_from_s: float | None
    peak_to_s: float | None
    """Where: seconds from the first arrival."""
    fixed_replica_hours: float | None
    """What the answer takes, from the first arrival to the last token; null without an answer."""
    most_saving_share: float | None
    """No autoscaler saves more of that."""
    usd_per_million_output_tokens: float | None
    """No autoscaler is cheaper; null without a price or an answer."""


class Autoscaling(Struct, frozen=True, kw_only=True):
    """The fewest replicas in each window of time, each window by itself: what scaling by windows could come to, and no bound.

    Each window's requests run on an empty fleet until the last has ended, and keep the promises among themselves, where the fixed answer keeps them over
    the whole trace and may be late in its worst minute; a window never needs more than the fixed answer. Work that is left at a window's end is not
    counted in the next.
    """

    window_s: float
    replicas: list[int]
    """By window, from the first arrival on."""
    requests: list[int]
    replica_hours: float
    fixed_replica_hours: float
    """What the fixed answer takes over the same windows."""
    saving_share: float


class Reseeding(Struct, frozen=True, kw_only=True):
    """The answer on other draws of the trace: each request comes as often as a Poisson draw of mean 1 says, copies up to 10 s later; users draw
    other sessions.
    """

    seeds: int
    """Draws, without those that came out empty."""
    holds: int
    """Draws in which the answer keeps the promises."""
    holds_with_one_more: int
    """The same with the next safer size; draws that held count too."""
    safer: int
    """That size: one replica more, or a tenth fewer users and one at least; the answer itself where one user is the answer."""
    suggested: int | None
    """The answer that keeps the promises in at least 95 % of the draws: it or the next safer; null: neither."""
    sure_share: float
    """With 95 % confidence, the answer holds in at least this share of all such draws."""
    worst_ms: dict[str, float | None]
    """By promise: the largest value of all draws at the answer; null: a request without an answer."""


class Variant(Struct, frozen=True, kw_only=True):
    """The answer after one setting is changed."""

    setting: str
    """As `--set` takes it: block_size."""
    value: str
    base: str
    answer: int | None
    """Replicas, or users, of those looked at around the answer of the base; null: it cannot be done with any of them."""
    change: int | None
    meets_at_answer: bool
    """With the answer of the base."""
    clauses: list[ClauseFigure]
    """At the answer of the base."""
    good_share: float | None
    """Requests that kept every limit at once, there."""
    reason: str | None
    """Why there is no answer, or why none was looked for beyond it."""

    @property
    def was_run(self) -> bool:
        """Whether there was anything to simulate; else the setting does not go with the others."""
        return bool(self.clauses)


class Narrower(Struct, frozen=True, kw_only=True):
    """A smaller tensor parallel degree than the answer's, as far as it was looked at."""

    tensor_parallel: int
    replicas: int | None = None
    """What it would take."""
    reason: Reason | None = None
    """Why it cannot do it, or not with as many as were tried, where no number is known."""


class Candidate(Struct, frozen=True, kw_only=True):
    """One kind of machine."""

    hardware: str
    tensor_parallel: int
    """Devices that each replica is spread over."""
    usd_per_device_hour: float | None
    price_as_of: str | None
    price_source: str | None
    feasible: bool
    reasons: list[Reason]
    """Why not, where it is not."""
    replicas: int | None
    users: int | None
    at_least: bool = False
    """The search for users stopped at as many as were allowed, and those are served well: more may fit."""
    devices: int | None
    narrower: list[Narrower] = []
    """Of a fleet whose replicas are spread over several devices: the smaller degrees, smallest first."""
    cost: Cost | None
    usd_per_user_hour: float | None
    monotone: bool | None
    """Whether, of all points that were simulated, those with more (users: fewer) than one that keeps the promises keep them too."""
    exceptions: list[int]
    """Where not."""
    alone: Point | None
    """Every request, or session, by itself on an idle machine."""
    points: list[Point]
    """All that were simulated, by replicas or users: the frontier of cost against latency."""
    bound: LowerBound | None
    """Null for users, for a cost model that is a table, and where an idle machine misses."""
    no_bound: str | None = None
    """Why a fleet that could be sized has none, in a sentence."""
    autoscaling: Autoscaling | None
    """Null for sessions, and where one replica does."""
    reseeding: Reseeding | None
    sensitivity: list[Variant]


class PlanTrace(Struct, frozen=True, kw_only=True):
    """What was planned for."""

    name: str
    format: str
    sha256: str
    """Of the file's bytes."""
    has_arrivals: bool
    """Recorded, or supplied."""
    requests: int
    with_tpot: int
    """Of them, those of two tokens or more."""
    longest_prompt: int
    sessions: int
    left_out: int
    """Requests that `--only-fitting` left out, because the context could not hold them."""
    bad: dict[str, int]
    """Rows that are no requests, by code."""
    span_s: float
    """From the first arrival to the last, of requests that wait for no other."""


class PlanResult(Struct, frozen=True, kw_only=True):
    """Everything that was found."""

    kind: str = "plan"
    version: int = 1
    mode: Literal["fleet", "users"]
    question_sha256: str
    """Of all settings as resolved, and the trace."""
    model: str
    slo: Slo
    settings: dict[str, object]
    """Of every candidate, beside hardware and replicas."""
    trace: PlanTrace
    candidates: list[Candidate]
    """In the order they were asked for."""
    best: int | None
    """Which of them is cheapest, or without prices takes the fewest devices; null: none can do it."""
    simulations: int
    """Replays that the answer took, those from an earlier run's cache included."""
    findings: list[str]
    """Plain sentences, the answer first."""
    assumptions: list[str]
