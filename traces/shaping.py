"""What a user asks of a trace before it is used: arrivals, scales, open loop, a limit, in one defined order. Streams."""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Final

from msgspec import Meta, Struct

from engine.core.errors import ConfigError
from traces.arrivals import SPELLINGS, gaps_ns
from traces.checked import checked
from traces.formats import Trace
from traces.schema import TraceRequest
from traces.transforms import (
    opened,
    resample,
    scale_rate,
    scale_time,
    with_arrivals,
    with_system_prompt,
)

SYSTEM_BLOCK_TOKENS: Final = 16
"""What a hash id of a system prompt covers where the trace has no hash ids of its own."""

Scale = Annotated[float, Meta(gt=0, le=10_000)]


class Shaping(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Applied from top to bottom."""

    limit: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    """Take only the first so many requests of the file."""
    arrivals: str | None = None
    """An arrival process, for requests or, where the trace has them, sessions; None: as recorded."""
    open_loop: bool = False
    """Send the requests of sessions at their recorded times, whatever became of those before."""
    rate_scale: Scale = 1.0
    """So many times the requests in the same span, by thinning or repetition."""
    resample: bool = False
    """Another draw of the same workload: each request as often as a Poisson draw of mean 1 says."""
    time_scale: Scale = 1.0
    """Arrivals so many times as far apart."""
    system_tokens: Annotated[int, Meta(ge=0, le=10**6)] = 0
    """A shared prompt before every request."""
    seed: Annotated[int, Meta(ge=0)] = 0


def build_shaping(**settings: object) -> Shaping:
    """The settings, checked.

    Raises:
        ConfigError: a setting is unknown or out of range; the message names its flag.
    """
    return checked(settings, Shaping)


def hash_block_tokens(trace: Trace, shaping: Shaping) -> int:
    """What a hash id covers in the shaped trace; 0: there are none."""
    if trace.hash_block_tokens or not shaping.system_tokens:
        return trace.hash_block_tokens
    return SYSTEM_BLOCK_TOKENS


def shaped(trace: Trace, shaping: Shaping, *, times_needed: bool = True) -> Iterator[TraceRequest]:
    """The trace's requests as asked for, in arrival order; without times all arrive at 0, where none are needed.

    Raises:
        ConfigError: the trace has no arrival times and none are supplied, or a setting does not fit it.
    """
    if times_needed and not trace.has_arrivals and shaping.arrivals is None:
        what = "its sessions have" if trace.format == "sessions" else "it has"
        raise ConfigError(
            f"{trace.name}: {what} no arrival times; give --arrivals {SPELLINGS}, such as --arrivals poisson:5"
        )
    requests: Iterator[TraceRequest] = trace.requests()
    if shaping.limit is not None:
        requests = islice(requests, shaping.limit)
    if shaping.arrivals is not None:
        requests = with_arrivals(requests, gaps_ns(shaping.arrivals, shaping.seed))
    if shaping.open_loop:
        requests = opened(requests)
    if shaping.rate_scale != 1:
        requests = scale_rate(requests, shaping.rate_scale, seed=shaping.seed)
    if shaping.resample:
        requests = resample(requests, seed=shaping.seed)
    if shaping.time_scale != 1:
        requests = scale_time(requests, shaping.time_scale)
    if shaping.system_tokens:
        requests = with_system_prompt(
            requests, shaping.system_tokens, hash_block_tokens(trace, shaping)
        )
    return requests
