"""From a recipe to a stream of requests with arrivals: which generator, how many, when. Knows no flags and writes nothing."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import Struct

from engine.core.errors import ConfigError
from traces.arrivals import SPELLINGS, gaps_ns
from traces.formats import open_trace
from traces.generate import Conversation, conversations, independent, resampled
from traces.native import NativeHeader
from traces.schema import TraceRequest
from traces.servegen import mix, read_clients
from traces.shaping import SYSTEM_BLOCK_TOKENS
from traces.transforms import units, with_arrivals, with_system_prompt

MOST: Final = 10_000_000


class Recipe(Struct, frozen=True, kw_only=True):
    """What to make. One of `clients`, `sessions`, `lengths` says from what; else lengths are drawn independently."""

    num: int | None = None
    """Requests, or sessions; None with `clients` only: all of the stretch."""
    arrivals: str | None = None
    """Of requests, or sessions; clients have their own."""
    prompt: str = "lognormal:1000:1"
    output: str = "lognormal:250:1"
    lengths: Path | None = None
    sessions: bool = False
    turns: str = "geometric:4"
    message: str = "lognormal:120:1.5"
    think: str = "lognormal:15000:1"
    max_context: int = 32_768
    system_tokens: int = 0
    clients: Path | None = None
    start_s: float = 0.0
    duration_s: float = 3600.0
    rate: float | None = None
    seed: int = 0


def synthesise(recipe: Recipe) -> tuple[NativeHeader, Iterator[TraceRequest]]:
    """The header of the new trace, and its requests in arrival order.

    Raises:
        ConfigError: settings that are out of range or do not go together.
        TraceError: a file that the recipe names cannot be used.
    """
    _check(recipe)
    block = SYSTEM_BLOCK_TOKENS if recipe.system_tokens or recipe.sessions else 0
    header = NativeHeader(hash_block_tokens=block)
    # Lengths and arrivals draw from seeds of their own: changing one leaves the other.
    lengths_seed, arrivals_seed = 2 * recipe.seed, 2 * recipe.seed + 1
    if recipe.clients is not None:
        requests = mix(
            read_clients(recipe.clients),
            start_s=recipe.start_s,
            duration_s=recipe.duration_s,
            rate=recipe.rate,
            seed=recipe.seed,
        )
        return header, _with_prompt(islice(requests, recipe.num), recipe)
    assert recipe.arrivals is not None
    gaps = gaps_ns(recipe.arrivals, arrivals_seed)
    if recipe.sessions:
        shape = Conversation(
            turns=recipe.turns,
            message=recipe.message,
            output=recipe.output,
            think=recipe.think,
            system_tokens=recipe.system_tokens,
            max_context=recipe.max_context,
            block_tokens=SYSTEM_BLOCK_TOKENS,
        )
        endless = conversations(shape, seed=lengths_seed)
        first = (row for unit in islice(units(endless), recipe.num) for row in unit)
        return header, with_arrivals(first, gaps)
    if recipe.lengths is not None:
        drawn = resampled(open_trace(recipe.lengths).requests(), seed=lengths_seed)
    else:
        drawn = independent(recipe.prompt, recipe.output, seed=lengths_seed)
    return header, _with_prompt(with_arrivals(islice(drawn, recipe.num), gaps), recipe)


def _with_prompt(requests: Iterator[TraceRequest], recipe: Recipe) -> Iterator[TraceRequest]:
    if not recipe.system_tokens:
        return requests
    return with_system_prompt(requests, recipe.system_tokens, SYSTEM_BLOCK_TOKENS)


def _check(recipe: Recipe) -> None:
    sources = [
        flag
        for flag, given in (
            ("--clients", recipe.clients is not None),
            ("--sessions", recipe.sessions),
            ("--lengths", recipe.lengths is not None),
        )
        if given
    ]
    if len(sources) > 1:
        raise ConfigError(f"give only one of {' and '.join(sources)}")
    if recipe.num is not None and not 1 <= recipe.num <= MOST:
        raise ConfigError(f"--num is {recipe.num}, expected 1 to {MOST:,}")
    if recipe.seed < 0:
        raise ConfigError(f"--seed is {recipe.seed}, expected 0 or more")
    if not 0 <= recipe.system_tokens <= 10**6:
        raise ConfigError(f"--system-tokens is {recipe.system_tokens}, expected 0 to 1,000,000")
    if recipe.clients is not None:
        if recipe.arrivals is not None:
            raise ConfigError("--arrivals do not go with --clients, which have their own")
        if not 0 <= recipe.start_s <= 1e12 or not 0 < recipe.duration_s <= 1e7:
            raise ConfigError("--start-s must be 0 or more, --duration-s above 0 and at most 1e7")
        if recipe.rate is not None and not 0 < recipe.rate <= 1e6:
            raise ConfigError(f"--rate is {recipe.rate:g}, expected above 0 and at most 1e6")
        return
    if recipe.num is None:
        raise ConfigError("give --num, how many requests or sessions to make")
    if recipe.arrivals is None:
        raise ConfigError(f"give --arrivals {SPELLINGS}, such as --arrivals poisson:5")
