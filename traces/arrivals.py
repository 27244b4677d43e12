"""Arrival processes: endless gaps between arrivals, drawn from a seed. Knows no requests.

Spelled `poisson:RATE`, `gamma:RATE:CV`, `weibull:RATE:CV`, `every:SECONDS` or `at-once`; RATE is in arrivals a second, CV the coefficient of
variation of the gaps (1 for Poisson, above it for bursts).
"""

import math
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import ConfigError
from traces.names import nearest
from traces.schema import MAX_ARRIVAL_NS

SPELLINGS: Final = "poisson:RATE, gamma:RATE:CV, weibull:RATE:CV, every:SECONDS or at-once"
DRAWS: Final = 4096
"""Gaps drawn at once; part of what a seed means."""

Floats = NDArray[np.float64]


def gaps_ns(spec: str, seed: int) -> Iterator[int]:
    """Gaps between arrivals in ns, without end; the same spec and seed give the same ones.

    Raises:
        ConfigError: the spec is none of the spellings, or a number in it is out of range.
    """
    kind, *texts = spec.split(":")
    wanted = {"poisson": 1, "gamma": 2, "weibull": 2, "every": 1, "at-once": 0}
    if wanted.get(kind) != len(texts):
        guess = "" if kind in wanted else nearest(kind, wanted)
        raise ConfigError(f"--arrivals: unknown value {spec!r}{guess}; known are {SPELLINGS}")
    numbers = [_positive(text, spec) for text in texts]
    if kind == "at-once":
        return repeat(0)
    if kind == "every":
        return repeat(round(numbers[0] * 1e9))
    rng = np.random.default_rng(seed)
    mean_ns = 1e9 / numbers[0]
    if kind == "poisson":
        return _drawn(lambda: rng.exponential(mean_ns, DRAWS))
    cv = numbers[1]
    if kind == "gamma":
        shape = cv**-2
        return _drawn(lambda: rng.gamma(shape, mean_ns / shape, DRAWS))
    shape = weibull_shape(cv)
    scale = mean_ns / math.gamma(1 + 1 / shape)
    return _drawn(lambda: scale * rng.weibull(shape, DRAWS))


def weibull_shape(cv: float) -> float:
    """Shape of the Weibull distribution with this coefficient of variation, from 0.05 to 20.

    Raises:
        ConfigError: `cv` is outside that range.
    """
    if not 0.05 <= cv <= 20:
        raise ConfigError(f"a Weibull process has a CV from 0.05 to 20, not {cv:g}")
    # log(1 + cv^2) = lgamma(1 + 2/k) - 2 lgamma(1 + 1/k), falling in k.
    wanted = math.log1p(cv * cv)
    low, high = 0.05, 100.0
    for _ in range(100):
        shape = (low + high) / 2
        found = math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)
        low, high = (shape, high) if found > wanted else (low, shape)
    return low


def _positive(text: str, spec: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 1e-6 <= number <= 1e6:
        raise ConfigError(
            f"--arrivals {spec}: {text!r} must be a number from one millionth to a million"
        )
    return number


def _drawn(draw: Callable[[], Floats]) -> Iterator[int]:
    while True:
        gaps = np.minimum(np.rint(draw()), MAX_ARRIVAL_NS + 1)
        yield from gaps.astype(np.int64).tolist()
