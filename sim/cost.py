"""How long a step takes: the protocol of cost models, and the features of a step that they price. Knows no scheduler state.

A model is given a plan's totals, never its rows, so pricing costs the same for one sequence and for a thousand.

"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.core.plan import Plan


class StepWork(NamedTuple):
    """What one step computes and reads, summed over its rows."""

    num_tokens: int
    """Positions computed."""
    num_samples: int
    """Positions whose logits are needed."""
    num_sequences: int
    context_tokens: int
    """KV positions that attention reads: for each row, all up to its last position, once."""
    attended: int
    """(query, key) pairs: for each position computed, the positions it attends to, itself included."""


class CostModel(Protocol):
    """Prices steps."""

    name: str

    def step_ns(self, work: StepWork) -> int:
        """Nanoseconds from the start of the step to its results, at least 1."""
        ...

    def leap_ns(self, work: StepWork, steps: int) -> NDArray[np.int64]:
        """`step_ns` of each of `steps` steps that decode the same sequences, [steps]; `work` is the first's."""
        ...


def growing_context(work: StepWork, steps: int) -> NDArray[np.int64]:
    """`context_tokens`, and `attended`, of each step of a leap: every sequence is one position longer each time."""
    size = work.num_sequences
    first = work.context_tokens
    return np.arange(first, first + (steps - 1) * size + 1, size, dtype=np.int64)


def repeated(work: StepWork, steps: int) -> Iterator[StepWork]:
    """The features of each step of a leap of decodes and one chunk of a prompt, of `num_tokens` - `num_sequences` + 1 positions."""
    chunk = work.num_tokens - work.num_sequences + 1
    more_attended = work.num_sequences - 1 + chunk * chunk
    for ahead in range(steps):
        yield work._replace(
            context_tokens=work.context_tokens + ahead * work.num_tokens,
            attended=work.attended + ahead * more_attended,
        )


def work_of(plan: Plan) -> StepWork:
    """The features of a plan. A few reductions over its columns, whatever its rows."""
    starts = plan.starts
    counts = plan.counts
    num_sequences = len(counts)
    decodes = plan.num_decodes
    context = sum(starts[:decodes].tolist()) + decodes
    if decodes == num_sequences:
        return StepWork(decodes, decodes, decodes, context, context)
    num_tokens, attended = decodes, context
    for start, count in zip(starts[decodes:].tolist(), counts[decodes:].tolist(), strict=True):
        num_tokens += count
        context += start + count
        attended += count * start + count * (count + 1) // 2
    num_samples = int(np.count_nonzero(plan.samples))
    return StepWork(num_tokens, num_samples, num_sequences, context, attended)
