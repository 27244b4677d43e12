"""A cost model fitted to a recording: a step's time as a sum of its features, each with a coefficient that is not negative.

What a token adds bends with how many there are in the step, since a small batch costs little more than one sequence and a large one costs its
arithmetic. A single slow step counts in full, since its like will come again; but a stretch of the run through which most steps were slow,
because something else had the machine, is set aside, and it is told what it cost. The errors that are told are of steps that the fit did not
see, those set aside included.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.core.errors import TraceError
from sim.arrays import Bools, Floats
from sim.cost import StepWork, by_stretches, chunk_by_chunk, growing_context
from sim.recorded_steps import RecordedStep, read_steps
from traces.recording import RecordingReader

FOLDS: Final = 5
STRETCH: Final = 32
"""Neighbouring steps that go to one fold together, for they are alike: a fit that has seen half of them has seen them all. They are also what
is set aside together."""
FEWEST_STEPS: Final = 100
BENDS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024)
"""Tokens of a step at which the cost of one more may change."""
FEWEST_BEYOND: Final = 20
"""A bend is used where so many steps have more tokens: the last stretch is also that of larger steps than were recorded."""
UNUSUAL: Final = 3.0
"""A stretch is set aside where its median error is so many (robust) standard deviations above that of stretches in general,"""
LEAST_UNUSUAL: Final = 0.1
"""and at least so far."""


PLAIN: Final = ("step", "sample", "chunk", "decode_context", "chunk_context", "chunk_pair")
_CONTEXT: Final = PLAIN.index("decode_context")


class Fit(Struct, frozen=True, kw_only=True):
    """A fit, and how far it is off."""

    recording: str
    model: str
    """As the recording names it."""
    num_steps: int
    max_tokens: int
    """Of a recorded step; what larger ones cost is a guess."""
    folds: int
    error_share: float
    """Mean of |predicted - recorded| / recorded, over steps that the fit did not see."""
    total_error_share: float
    """Predicted over recorded time of all those steps together, less 1."""
    unusual_steps_share: float
    """Steps of the stretches that were set aside."""
    unusual_time_share: float
    """What they took beyond the fit, of all recorded time. An engine that always has such stretches is slower by this share."""
    lag_us: float
    """Mean time from the end of a step until the recorded loop took its results in."""
    bends: list[int]
    coefficients: dict[str, float]
    """Nanoseconds a unit, of those that are not 0; `token_8` is what a token adds from the eighth to the next bend."""

    def column(self) -> list[float]:
        """Of all features, in their order."""
        return [self.coefficients.get(name, 0.0) for name in names(self.bends)]


def names(bends: Sequence[int]) -> list[str]:
    """Of the features, in their order."""
    return [*PLAIN, *(f"token_{bend}" for bend in bends)]


def features(work: StepWork, bends: Sequence[int]) -> list[float]:
    """In the order of `names`."""
    tokens = work.num_tokens
    ends = (*bends[1:], tokens)
    return [
        1,
        work.num_samples,
        work.num_chunks,
        work.context_tokens - work.chunk_context,
        work.chunk_context,
        work.chunk_attended,
        *(max(0, min(tokens, end) - bend) for bend, end in zip(bends, ends, strict=True)),
    ]


def fit_recording(path: Path) -> Fit:
    """Fits the steps of a recording.

    Raises:
        TraceError: it cannot be used as a recording, or has too few steps.
    """
    with RecordingReader(path) as reader:
        model = reader.header.model
    steps = read_steps(path)
    if len(steps) < FEWEST_STEPS:
        raise TraceError(
            f"the recording has {len(steps)} steps, and a fit needs {FEWEST_STEPS}; record a longer run",
            file=str(path),
        )
    return fit_steps(steps, recording=path.name, model=model)


def fit_steps(steps: list[RecordedStep], *, recording: str, model: str) -> Fit:
    """Fits these steps, and cross-validates."""
    tokens = np.array([step.work.num_tokens for step in steps])
    bends = [bend for bend in BENDS if np.count_nonzero(tokens > bend) >= FEWEST_BEYOND] or [0]
    x = np.array([features(step.work, bends) for step in steps], np.float64)
    y = np.maximum(1.0, np.array([step.ns for step in steps], np.float64))
    fold = (np.arange(len(y)) // STRETCH) % FOLDS
    unseen = np.zeros_like(y)
    for number in range(FOLDS):
        out = fold == number
        if out.any() and not out.all():
            unseen[out] = x[out] @ _solve(x[~out], y[~out])[0]
    coefficients, usual = _solve(x, y)
    beyond = (y - x @ coefficients)[~usual].sum()
    return Fit(
        recording=recording,
        model=model,
        num_steps=len(y),
        max_tokens=int(tokens.max()),
        folds=FOLDS,
        error_share=float(np.mean(np.abs(unseen - y) / y)),
        total_error_share=float(unseen.sum() / y.sum() - 1),
        unusual_steps_share=float(np.mean(~usual)),
        unusual_time_share=float(beyond / y.sum()),
        lag_us=float(np.mean([step.lag_ns for step in steps])) / 1e3,
        bends=bends,
        coefficients={
            name: value
            for name, value in zip(names(bends), coefficients.tolist(), strict=True)
            if value > 0
        },
    )


def _solve(x: Floats, y: Floats) -> tuple[Floats, Bools]:
    """Non-negative least squares of errors relative to the fit before; (coefficients, which steps they rest on)."""
    from scipy.optimize import nnls

    scale = np.maximum(1e-12, x.max(axis=0))
    usual = np.ones(len(y), np.bool_)
    expected: Floats = np.full_like(y, y.mean())
    coefficients: Floats = np.zeros(x.shape[1])
    for turn in range(6):
        weights = 1 / expected
        solved, _ = nnls((x / scale * weights[:, None])[usual], (y * weights)[usual])
        coefficients = solved / scale
        expected = np.maximum(x @ coefficients, y.mean() / 100)
        if turn:
            usual = _usual(y / expected - 1)
    return coefficients, usual


def _usual(error: Floats) -> Bools:
    """Which steps, of these relative errors in the order of the run, belong to stretches that are like the others."""
    stretch = np.arange(len(error)) // STRETCH
    medians = np.array([np.median(error[stretch == at]) for at in range(stretch[-1] + 1)])
    middle = np.median(medians)
    deviation = 1.4826 * np.median(np.abs(medians - middle))
    usual: Bools = (medians <= middle + max(UNUSUAL * deviation, LEAST_UNUSUAL))[stretch]
    return usual


class FittedCost:
    """Prices steps by a fit."""

    name = "fitted"

    def __init__(self, fit: Fit) -> None:
        """Takes the coefficients."""
        self._bends = fit.bends
        self._coefficients = fit.column()
        self._context_ns = self._coefficients[_CONTEXT]

    def step_ns(self, work: StepWork) -> int:
        """Nanoseconds of one step."""
        context = work.context_tokens - work.chunk_context
        return max(1, round(context * self._context_ns + self._without_context_ns(work)))

    def leap_ns(self, work: StepWork, steps: int) -> NDArray[np.int64]:
        """`step_ns` of each of `steps` steps, in a few array operations of the same arithmetic."""
        times: Floats = np.multiply(
            growing_context(work, steps), self._context_ns, dtype=np.float64
        )
        times += self._without_context_ns(work)
        np.rint(times, out=times)
        np.maximum(times, 1.0, out=times)
        return times.astype(np.int64)

    def run_ns(self, sizes: NDArray[np.int64], contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `CostModel`."""
        return by_stretches(self, sizes, contexts)

    def chunks_ns(self, work: StepWork, steps: int) -> NDArray[np.int64]:
        """See `CostModel`."""
        return chunk_by_chunk(self, work, steps)

    def parts(self, most_tokens: int) -> tuple[dict[str, float], list[tuple[int, float]]]:
        """Coefficients of the plain features, and (tokens, what they add) wherever that bends, from 1 to `most_tokens`."""
        size = len(PLAIN)
        per_token = self._coefficients[size:]
        points = sorted({1, most_tokens, *(b for b in self._bends if 1 < b < most_tokens)})
        curve = []
        for tokens in points:
            empty = StepWork(tokens, 0, 0, 0, 0)
            values = features(empty, self._bends)[size:]
            curve.append((tokens, sum(a * b for a, b in zip(values, per_token, strict=True))))
        return dict(zip(PLAIN, self._coefficients, strict=False)), curve

    def _without_context_ns(self, work: StepWork) -> float:
        values = features(work, self._bends)
        values[_CONTEXT] = 0.0
        return sum(a * b for a, b in zip(values, self._coefficients, strict=True))
