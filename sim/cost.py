"""How long a step takes: the protocol of cost models, and the features of a step that they price. Knows no scheduler state.

A model is given a plan's totals, never its rows, so pricing costs the same for one sequence and for a thousand.
"""

from itertools import pairwise
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
    num_chunks: int = 0
    """Of the sequences, those that compute a part of their prompt; the others decode."""
    chunk_tokens: int = 0
    """Of `num_tokens`, the chunks' share."""
    chunk_context: int = 0
    """Of `context_tokens`, the chunks' share."""
    chunk_attended: int = 0
    """Of `attended`, the chunks' share."""


class CostModel(Protocol):
    """Prices steps."""

    name: str

    def step_ns(self, work: StepWork) -> int:
        """Nanoseconds from the start of the step to its results, at least 1."""
        ...

    def leap_ns(self, work: StepWork, steps: int) -> NDArray[np.int64]:
        """`step_ns` of each of `steps` steps that decode the same sequences, [steps]; `work` is the first's."""
        ...

    def run_ns(self, sizes: NDArray[np.int64], contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """`step_ns` of each of the steps in which sizes[i] sequences decode, their contexts together contexts[i], [steps]."""
        ...

    def chunks_ns(self, work: StepWork, steps: int) -> NDArray[np.int64]:
        """`step_ns` of each of `steps` steps of the same decodes beside chunks of one size of one prompt, [steps]; `work` is the first's."""
        ...


def by_stretches(
    cost: CostModel, sizes: NDArray[np.int64], contexts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """`run_ns` by one `leap_ns` for each stretch of steps of one size, in which every sequence grows by one position a step."""
    bounds = [0, *((sizes[1:] != sizes[:-1]).nonzero()[0] + 1).tolist(), len(sizes)]
    return np.concatenate(
        [
            cost.leap_ns(decode_work(int(sizes[first]), int(contexts[first])), end - first)
            for first, end in pairwise(bounds)
        ]
    )


def growing_context(work: StepWork, steps: int) -> NDArray[np.int64]:
    """`context_tokens`, and `attended`, of each step of a leap: every sequence is one position longer each time."""
    size = work.num_sequences
    first = work.context_tokens
    return np.arange(first, first + (steps - 1) * size + 1, size, dtype=np.int64)


def further(work: StepWork, steps: int) -> StepWork:
    """The features of a leap's step so many steps on, each with the same decodes and a chunk of one size of one prompt."""
    chunk, decodes = work.chunk_tokens, work.num_sequences - 1
    return work._replace(
        context_tokens=work.context_tokens + steps * (decodes + chunk),
        attended=work.attended + steps * (decodes + chunk * chunk),
        chunk_context=work.chunk_context + steps * chunk,
        chunk_attended=work.chunk_attended + steps * chunk * chunk,
    )


def chunk_by_chunk(cost: CostModel, work: StepWork, steps: int) -> NDArray[np.int64]:
    """`chunks_ns` by one `step_ns` for each."""
    return np.array([cost.step_ns(further(work, ahead)) for ahead in range(steps)], np.int64)


def work_of(plan: Plan) -> StepWork:
    """The features of a plan. A few reductions over its columns, whatever its rows."""
    starts = plan.starts
    counts = plan.counts
    num_sequences = len(counts)
    decodes = plan.num_decodes
    context = sum(starts[:decodes].tolist()) + decodes
    if decodes == num_sequences:
        return StepWork(decodes, decodes, decodes, context, context)
    decoded = context
    chunk_tokens = chunk_attended = 0
    for start, count in zip(starts[decodes:].tolist(), counts[decodes:].tolist(), strict=True):
        chunk_tokens += count
        context += start + count
        chunk_attended += count * start + count * (count + 1) // 2
    return StepWork(
        decodes + chunk_tokens,
        int(np.count_nonzero(plan.samples)),
        num_sequences,
        context,
        decoded + chunk_attended,
        num_sequences - decodes,
        chunk_tokens,
        context - decoded,
        chunk_attended,
    )


def prefill_work(tokens: int) -> StepWork:
    """The features of a step that computes one prompt of `tokens`, alone."""
    pairs = tokens * (tokens + 1) // 2
    return StepWork(tokens, 1, 1, tokens, pairs, 1, tokens, tokens, pairs)


def decode_work(num_sequences: int, context_tokens: int) -> StepWork:
    """The features of a step in which `num_sequences` decode, their contexts together `context_tokens`."""
    return StepWork(num_sequences, num_sequences, num_sequences, context_tokens, context_tokens)
