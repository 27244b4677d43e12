"""Where a step lies: the fewest replicas that keep the promises, the most users. Knows no simulation: it asks for sizes and is told.

A search is a generator. It yields sizes, is sent whether each holds, and returns what it found. It doubles from 1, bisects, and then looks at
the neighbours of its answer, because a real fleet may be worse with one replica more: then it says so, and the answer is the one whose two
neighbours on the safe side hold as well.
"""

from collections.abc import Generator, Mapping
from typing import NamedTuple

Asked = list[int]
Told = Mapping[int, bool]


class Ask(NamedTuple):
    """Sizes that are to be tried."""

    sizes: Asked
    whole: bool
    """False: a run may be given up as soon as it cannot hold any more."""


class Found(NamedTuple):
    """The end of a search."""

    answer: int | None
    """None: no size does, up to the largest allowed."""
    exceptions: list[int]
    """Sizes that were tried and do not hold, though one on their unsafe side does."""


Search = Generator[Ask, Told, Found]


def fewest(most: int, least: int = 1) -> Search:
    """The smallest of `least` to `most` that holds, where larger sizes are safer; smaller ones are known not to hold.

    The answer holds and so do the next two; the one below does not.
    """
    tried: dict[int, bool] = {}
    low = least - 1  # does not hold, nor does anything below that matters
    while True:
        # What is far below the start is known: the first strides are as long as if they had come from 1.
        high, step = low + 1, 1 if tried else least
        while high <= most:
            tried |= yield from _try([high], tried, whole=False)
            if tried[high]:
                break
            low = high
            high = min(high + step, most) if high < most else most + 1
            step *= 2
        if high > most:
            return Found(None, _exceptions(tried, safe_is_up=True))
        while high - low > 1:
            middle = (low + high) // 2
            tried |= yield from _try([middle], tried, whole=False)
            low, high = (low, middle) if tried[middle] else (middle, high)
        around = [high + d for d in (-1, 0, 1, 2) if 1 <= high + d <= most]
        tried |= yield from _try(around, {}, whole=True)
        if high - 2 >= least:
            tried |= yield from _try([high - 2], tried, whole=False)
        above = [size for size in around if size > high and not tried[size]]
        if not above:
            return Found(high, _exceptions(tried, safe_is_up=True))
        low = max(above)


def greatest(most: int) -> Search:
    """The largest of 1 to `most` that holds, where smaller sizes are safer.

    The answer holds and so do the two below; the next does not, or is more than `most`.
    """
    tried: dict[int, bool] = {}
    bound = most  # nothing above is looked at
    while True:
        low, high, step = 0, 1, 1
        known = [size for size, holds in tried.items() if holds and size <= bound]
        if known:
            low = max(known)
            high = low + 1
        while high <= bound:
            tried |= yield from _try([high], tried, whole=False)
            if not tried[high]:
                break
            low = high
            high = min(high + step, bound) if high < bound else bound + 1
            step *= 2
        while high - low > 1:
            middle = (low + high) // 2
            tried |= yield from _try([middle], tried, whole=False)
            low, high = (middle, high) if tried[middle] else (low, middle)
        if low == 0:
            return Found(None, _exceptions(tried, safe_is_up=False))
        around = [low + d for d in (-2, -1, 0, 1, 2) if 1 <= low + d <= most]
        tried |= yield from _try(around, {}, whole=True)
        below = [size for size in around if size < low and not tried[size]]
        if not below:
            return Found(low, _exceptions(tried, safe_is_up=False))
        bound = min(below) - 1


def _try(sizes: Asked, tried: Told, *, whole: bool) -> Generator[Ask, Told, Told]:
    wanted = [size for size in sizes if size not in tried]
    return (yield Ask(wanted, whole)) if wanted else {}


def _exceptions(tried: Told, *, safe_is_up: bool) -> list[int]:
    holding = [size for size, holds in tried.items() if holds]
    if not holding:
        return []
    edge = min(holding) if safe_is_up else max(holding)
    return sorted(
        size
        for size, holds in tried.items()
        if not holds and (size > edge if safe_is_up else size < edge)
    )
