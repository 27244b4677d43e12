"""Straight lines below a cost model: each prices a step as a sum of its features, and no step of the model is cheaper. Knows no trace.

A model is the largest, or a sum, of a few parts, so one line is good for prompts and another for decodes; whoever needs a bound takes the best.
"""

from itertools import pairwise
from typing import NamedTuple

from sim.cost import CostModel, StepWork
from sim.fitted import FittedCost
from sim.roofline import Roofline


class StepFloor(NamedTuple):
    """Nanoseconds a unit, none below 0. `StepWork` says what the units are."""

    step: float
    sequence: float = 0.0
    token: float = 0.0
    sample: float = 0.0
    decode_context: float = 0.0
    chunk_token: float = 0.0
    """Beside `token`."""
    chunk_pair: float = 0.0
    chunk_context: float = 0.0

    def of(self, work: StepWork) -> float:
        """Nanoseconds that the step takes at least."""
        return (
            self.step
            + self.sequence * work.num_sequences
            + self.token * work.num_tokens
            + self.sample * work.num_samples
            + self.decode_context * (work.context_tokens - work.chunk_context)
            + self.chunk_token * work.chunk_tokens
            + self.chunk_pair * work.chunk_attended
            + self.chunk_context * work.chunk_context
        )


def floors_of(cost: CostModel, most_tokens: int) -> list[StepFloor]:
    """Lines below the price of every step of 1 to `most_tokens` tokens; none where nothing is known of the model between its points."""
    if isinstance(cost, Roofline):
        return _below_roofline(cost, most_tokens)
    if isinstance(cost, FittedCost):
        return _below_fit(cost, most_tokens)
    return []


def _below_roofline(cost: Roofline, most_tokens: int) -> list[StepFloor]:
    """A maximum is at least each of its parts: arithmetic or weights; (query, key) pairs or KV bytes of chunks; device or host."""
    parts = cost.parts(most_tokens)
    found = []
    for step, token in (parts.compute, parts.memory):
        for pair, tile, context in (
            (parts.pair_ns, parts.tile * parts.pair_ns, 0.0),
            (0.0, 0.0, parts.kv_ns),
        ):
            found.append(
                StepFloor(
                    step=step + parts.fixed_ns,
                    token=token + parts.token_ns,
                    sample=parts.sample_ns,
                    decode_context=max(parts.pair_ns, parts.kv_ns),
                    chunk_token=tile,
                    chunk_pair=pair,
                    chunk_context=context,
                )
            )
    host = StepFloor(step=parts.host_ns, sequence=parts.host_sequence_ns, token=parts.host_token_ns)
    if parts.overlap:
        found.append(host)
    else:
        found = [StepFloor(*map(sum, zip(line, host, strict=True))) for line in found]
    return [_upright(line._replace(step=line.step + parts.step_ns)) for line in found]


def _below_fit(cost: FittedCost, most_tokens: int) -> list[StepFloor]:
    """What a token adds bends with their number: the edges of the curve's lower hull."""
    plain, curve = cost.parts(most_tokens)
    return [
        _upright(
            StepFloor(
                step=plain["step"] + at,
                token=slope,
                sample=plain["sample"],
                decode_context=plain["decode_context"],
                chunk_pair=plain["chunk_pair"],
                chunk_context=plain["chunk_context"],
            ),
            plain["step"] + min(value for _, value in curve),
        )
        for at, slope in _lower_hull(curve)
    ]


def _upright(line: StepFloor, least: float = 0.0) -> StepFloor:
    """The line less half a nanosecond, since prices are rounded, and nowhere below 0: from the step, or from each token, as a step has one at least.

    Where both are less than that they go. The rest stays, if step and tokens are worth `least` of half a nanosecond or more anyway; else two
    thirds of it do: no rounding to 1 or more takes a larger share away.
    """
    step = line.step - 0.5
    if step >= 0:
        return line._replace(step=step)
    if line.token + step >= 0:
        return line._replace(step=0.0, token=line.token + step)
    share = 1.0 if least >= 0.5 else 2 / 3
    return StepFloor(*(share * value for value in line))._replace(step=0.0, token=0.0)


def _lower_hull(curve: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """(value at 0, slope) of the edges of the lower hull of points that ascend in x and y."""
    hull: list[tuple[int, float]] = []
    for x, y in curve:
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    if len(hull) == 1:
        [(x, y)] = hull
        return [(0.0, y / x)]
    edges = []
    for (x0, y0), (x1, y1) in pairwise(hull):
        slope = (y1 - y0) / (x1 - x0)
        edges.append((y0 - slope * x0, slope))
    return edges
