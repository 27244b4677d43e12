"""A cost model fitted to a recording: a step's time as a sum of its features, each with a coefficient that is not negative.

Besides what a step computes and reads, the features bend at a few batch sizes, since a small batch costs little more than one sequence and a
large one costs its arithmetic. Errors are relative, and those that are told come from steps that the fit did not see.
"""

from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.core.errors import TraceError
from sim.cost import StepWork, growing_context
from sim.recorded_steps import RecordedStep, read_steps
from traces.recording import RecordingReader

FOLDS: Final = 5
STRETCH: Final = 32
"""Neighbouring steps that go to one fold together: they are alike, and a fit that has seen half of them has seen them all."""
FEWEST_STEPS: Final = 100
BENDS: Final = (4, 16, 64, 256)

Floats = NDArray[np.float64]

FEATURES: Final = (
    "step",
    "decode",
    "chunk_token",
    "chunk",
    "sample",
    "decode_context",
    "chunk_context",
    "chunk_pair",
    *(f"token_up_to_{bend}" for bend in BENDS),
    *(f"token_beyond_{bend}" for bend in BENDS),
)
_CONTEXT: Final = FEATURES.index("decode_context")


class Fit(Struct, frozen=True, kw_only=True):
    """A fit, and how far it is off."""

    recording: str
    model: str
    """As the recording names it."""
    num_steps: int
    folds: int
    error_share: float
    """Mean of |predicted - recorded| / recorded, over steps that the fit did not see."""
    total_error_share: float
    """Predicted over recorded time of all those steps together, less 1."""
    lag_us: float
    """Mean time from the end of a step until the recorded loop took its results in."""
    coefficients: dict[str, float]
    """Nanoseconds a unit, of those that are not 0."""


def features(work: StepWork) -> list[float]:
    """In the order of `FEATURES`."""
    tokens = work.num_tokens
    return [
        1,
        work.num_sequences - work.num_chunks,
        work.chunk_tokens,
        work.num_chunks,
        work.num_samples,
        work.context_tokens - work.chunk_context,
        work.chunk_context,
        work.chunk_attended,
        *(min(tokens, bend) for bend in BENDS),
        *(max(0, tokens - bend) for bend in BENDS),
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
    x = np.array([features(step.work) for step in steps], np.float64)
    y = np.maximum(1.0, np.array([step.ns for step in steps], np.float64))
    fold = (np.arange(len(y)) // STRETCH) % FOLDS
    unseen = np.zeros_like(y)
    for number in range(FOLDS):
        out = fold == number
        if out.any() and not out.all():
            unseen[out] = x[out] @ _solve(x[~out], y[~out])
    coefficients = _solve(x, y)
    return Fit(
        recording=recording,
        model=model,
        num_steps=len(y),
        folds=FOLDS,
        error_share=float(np.mean(np.abs(unseen - y) / y)),
        total_error_share=float(unseen.sum() / y.sum() - 1),
        lag_us=float(np.mean([step.lag_ns for step in steps])) / 1e3,
        coefficients={
            name: value
            for name, value in zip(FEATURES, coefficients.tolist(), strict=True)
            if value > 0
        },
    )


def _solve(x: Floats, y: Floats) -> Floats:
    """Non-negative least squares of relative errors: relative to what a first fit says, so that noise upwards counts in full."""
    from scipy.optimize import nnls

    scale = np.maximum(1e-12, x.max(axis=0))
    coefficients = np.zeros(x.shape[1])
    weights = 1 / np.full_like(y, y.mean())
    for _ in range(2):
        solved, _ = nnls(x / scale * weights[:, None], y * weights)
        coefficients = solved / scale
        weights = 1 / np.maximum(x @ coefficients, y.mean() / 100)
    return coefficients


class FittedCost:
    """Prices steps by a fit."""

    name = "fitted"

    def __init__(self, fit: Fit) -> None:
        """Takes the coefficients."""
        self._coefficients = [fit.coefficients.get(name, 0.0) for name in FEATURES]
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

    def _without_context_ns(self, work: StepWork) -> float:
        values = features(work)
        values[_CONTEXT] = 0.0
        return sum(a * b for a, b in zip(values, self._coefficients, strict=True))
