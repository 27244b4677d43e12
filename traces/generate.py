"""Generators of requests: independent ones, and conversations that grow. Drawn from a seed; every request arrives at 0.

Lengths are spelled `fixed:N`, `uniform:LOW:HIGH`, `lognormal:MEAN:CV` or `geometric:MEAN`, and are whole numbers of at least 1.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Final

import numpy as np
from msgspec import Struct

from engine.core.errors import ConfigError
from traces.names import nearest
from traces.schema import MAX_TOKENS, ROOT, TraceRequest

SPELLINGS: Final = "fixed:N, uniform:LOW:HIGH, lognormal:MEAN:CV or geometric:MEAN"
DRAWS: Final = 4096
"""Drawn at once; part of what a seed means."""


def draws(name: str, spec: str, rng: np.random.Generator, *, least: float = 1) -> Iterator[int]:
    """Numbers without end, rounded to whole ones of at least `least`.

    Raises:
        ConfigError: the spec of `name` is none of the spellings, or a number in it is out of range.
    """
    kind, *texts = spec.split(":")
    wanted = {"fixed": 1, "uniform": 2, "lognormal": 2, "geometric": 1}
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        numbers = []
    if wanted.get(kind) != len(texts) or len(numbers) != len(texts):
        guess = "" if kind in wanted else nearest(kind, wanted)
        raise ConfigError(f"{name}: unknown value {spec!r}{guess}; known are {SPELLINGS}")
    if not all(0 < number <= MAX_TOKENS for number in numbers):
        raise ConfigError(f"{name} {spec!r}: numbers must be above 0 and at most {MAX_TOKENS}")
    draw: Callable[[], np.ndarray]
    if kind == "fixed":
        draw = lambda: np.full(DRAWS, numbers[0])  # noqa: E731
    elif kind == "uniform":
        low, high = numbers
        if low > high:
            raise ConfigError(f"{name} {spec!r}: {low:g} is above {high:g}")
        draw = lambda: rng.integers(round(low), round(high), DRAWS, endpoint=True)  # noqa: E731
    elif kind == "lognormal":
        mean, cv = numbers
        sigma = math.sqrt(math.log1p(cv * cv))
        draw = lambda: rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, DRAWS)  # noqa: E731
    else:
        draw = lambda: rng.geometric(min(1.0, 1 / numbers[0]), DRAWS)  # noqa: E731
    while True:
        yield from np.clip(np.rint(draw()), least, MAX_TOKENS).astype(np.int64).tolist()


def independent(prompt: str, output: str, *, seed: int) -> Iterator[TraceRequest]:
    """Requests without end, lengths drawn independently.

    Raises:
        ConfigError: a spec is wrong.
    """
    rng = np.random.default_rng(seed)
    prompts, outputs = draws("--prompt", prompt, rng), draws("--output", output, rng)
    for line, num_prompt, num_output in zip(count(1), prompts, outputs, strict=False):
        yield TraceRequest(line, 0, num_prompt, num_output)


def resampled(requests: Iterable[TraceRequest], *, seed: int) -> Iterator[TraceRequest]:
    """Requests without end, each with the lengths of one of `requests`, drawn with replacement; all of them are read first.

    Raises:
        ConfigError: there are none.
    """
    prompts, outputs = array("q"), array("q")
    for row in requests:
        prompts.append(row.num_prompt)
        outputs.append(row.num_output)
    if not prompts:
        raise ConfigError("there are no lengths to draw from")
    rng = np.random.default_rng(seed)
    lines = count(1)
    while True:
        for i in rng.integers(0, len(prompts), DRAWS).tolist():
            yield TraceRequest(next(lines), 0, prompts[i], outputs[i])


class Conversation(Struct, frozen=True, kw_only=True):
    """How conversations go; each field a spec of lengths, `think` in milliseconds."""

    turns: str = "geometric:4"
    message: str = "lognormal:120:1.5"
    output: str = "lognormal:250:1"
    think: str = "lognormal:15000:1"
    system_tokens: int = 0
    """Begin every conversation, the same for all."""
    max_context: int = 32_768
    """A conversation ends before the turn that would exceed this."""
    block_tokens: int = 16


def conversations(shape: Conversation, *, seed: int) -> Iterator[TraceRequest]:
    """Sessions without end, each a closed loop whose prompt is all that was said before and a new message.

    Full blocks have ids: the system prompt's are the same in all sessions, others are a session's own.

    Raises:
        ConfigError: a spec is wrong, or the context is too small for one turn.
    """
    rng = np.random.default_rng(seed)
    turns = draws("--turns", shape.turns, rng)
    messages = draws("--message", shape.message, rng)
    outputs = draws("--output", shape.output, rng)
    thinks = draws("--think", shape.think, rng, least=0)
    if shape.system_tokens >= shape.max_context - 1:
        raise ConfigError(
            f"a system prompt of {shape.system_tokens} tokens leaves no room in a context of {shape.max_context}"
        )
    system_blocks = shape.system_tokens // shape.block_tokens
    next_id = system_blocks
    line = 0
    for session in count():
        history = shape.system_tokens
        ids = array("q", range(system_blocks))
        for turn in range(next(turns)):
            room = shape.max_context - history
            if room < 2:
                break
            num_prompt = history + min(next(messages), room - 1)
            num_output = min(next(outputs), shape.max_context - num_prompt)
            fresh = num_prompt // shape.block_tokens - len(ids)
            ids.extend(range(next_id, next_id + fresh))
            next_id += fresh
            line += 1
            yield TraceRequest(
                line,
                0,
                num_prompt,
                num_output,
                ids[:],
                session,
                turn,
                turn - 1 if turn else ROOT,
                next(thinks) * 1_000_000 if turn else 0,
            )
            history = num_prompt + num_output
