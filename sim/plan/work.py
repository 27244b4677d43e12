"""The least device time that each request of a trace takes on one kind of machine, by one straight line below its cost model. Knows no promise.

A step lasts at least `step + sum of its rows' own costs` of the line. A row is charged its own cost, and a share of `step` by one of four rules. Under each
the charges of the rows of one step never exceed what the step lasts, so the charges of a trace never exceed what its steps last:

    rows     a row pays step / max_batch: a step has no more rows
    tokens   a position pays step / token_budget: a step has no more
    pool     a block pays step / blocks: the rows of a step hold their blocks, a shared one counted once
    time     all rows pay in proportion to their own costs: v · D / (D - step) or more, in a step that lasts D. The steps of a sequence that decodes m
             tokens within m · T last T on average or less, and D / (D - step) is convex and falls, so together they pay at least as if each lasted T

What a row pays of its own: a prompt its positions and pairs, a decode its token and the context that it reads. After a preemption the next token comes from a
chunk that computes again what no cache can keep; where that would be cheaper than reading the context, it is what counts.
"""

from typing import Final, Literal

import numpy as np
from msgspec import Struct

from sim.arrays import Floats, Ints
from sim.floors import StepFloor
from sim.plan.demand import Demand
from sim.report.figures import Resolved

Rule = Literal["rows", "tokens", "pool", "time"]
RULES: Final[tuple[Rule, ...]] = ("rows", "tokens", "pool", "time")


class Machine(Struct, frozen=True, kw_only=True):
    """What bounds a step of a replica."""

    max_batch: int
    token_budget: int
    num_blocks: int
    block_size: int
    sequences: int
    """Of each request."""
    beam: bool
    resumes_by_computing: bool
    """Preempted work computes again all that the prefix index does not have."""


def machine_of(resolved: Resolved) -> Machine:
    """One replica, as the settings have it."""
    settings = resolved.settings
    return Machine(
        max_batch=settings.max_batch,
        token_budget=settings.token_budget,
        num_blocks=resolved.pool.num_blocks,
        block_size=settings.block_size,
        sequences=settings.beam_width or settings.num_sequences,
        beam=settings.beam_width is not None,
        resumes_by_computing=settings.preemption == "recompute" and settings.beam_width is None,
    )


class Work(Struct, frozen=True, kw_only=True):
    """Nanoseconds by request, [n]."""

    prompt: Floats
    """Until its first token."""
    decode: Floats
    """After it."""
    in_time: Floats
    """More of `decode`, where the request keeps its promised time a token."""


def work_of(
    demand: Demand, line: StepFloor, rule: Rule, machine: Machine, tpot_ns: float | None
) -> Work:
    """What the line charges by the rule; `tpot_ns` is used by `time` alone."""
    width = machine.sequences
    decodes = np.maximum(demand.output - 1, 0)
    prompt = (
        demand.computed * (line.token + line.chunk_token)
        + demand.pairs * line.chunk_pair
        + demand.prompt * line.chunk_context
        + line.sample
        + line.sequence
    )
    base = line.token + line.sample + line.sequence
    read = _context_ns(demand, decodes, line, machine)
    decode = width * (decodes * base + read)
    in_time = np.zeros_like(decode)
    if rule == "rows":
        prompt += line.step / machine.max_batch
        decode += width * decodes * (line.step / machine.max_batch)
    elif rule == "tokens":
        prompt += demand.computed * (line.step / machine.token_budget)
        decode += width * decodes * (line.step / machine.token_budget)
    elif rule == "pool":
        blocks = decodes * demand.held_blocks / width
        if not machine.beam:
            blocks += decodes * (decodes + 1) / (2 * machine.block_size)
        decode += width * blocks * (line.step / machine.num_blocks)
    elif tpot_ns is not None and tpot_ns > line.step:
        first = np.minimum(decodes, 1)
        least = base + _context_ns(demand, first, line, machine)
        in_time = width * decodes * least * (line.step / (tpot_ns - line.step))
    return Work(prompt=prompt, decode=decode, in_time=in_time)


def _context_ns(demand: Demand, decodes: Ints, line: StepFloor, machine: Machine) -> Floats:
    """What one sequence pays for its contexts over its first `decodes` decoded tokens.

    The j-th reads `prompt + j` positions, or comes from a chunk that computes `j + unkeyed - 1` positions beside its own.
    """
    again = line.token + line.chunk_token if machine.resumes_by_computing else 0.0
    unkeyed = demand.unkeyed if machine.sequences == 1 else 0 * demand.unkeyed
    read = line.decode_context
    chunk = line.chunk_pair + line.chunk_context
    whole = read * _sum(demand.prompt.astype(np.float64), 1.0, decodes)
    # What a chunk costs beyond a read, of the j-th token: start + slope · j. Below 0 it is the cheaper one.
    start = (chunk - read) * demand.prompt + again * (unkeyed - 1)
    slope = chunk - read + again
    if not machine.resumes_by_computing:
        start = (chunk - read) * demand.prompt
    if slope > 0:
        cheaper = np.clip(np.floor(-start / slope), 0, decodes)
        saved = _sum(start, slope, cheaper)
    elif slope < 0:
        dearer = np.clip(np.floor(start / -slope), 0, decodes)
        saved = _sum(start, slope, decodes) - _sum(start, slope, dearer)
    else:
        saved = np.minimum(start, 0.0) * decodes
    return whole + np.minimum(saved, 0.0)


def _sum(start: Floats, slope: float, count: Ints | Floats) -> Floats:
    """Of start + slope · j, for j from 1 to `count`."""
    number = np.asarray(count, np.float64)
    return start * number + slope * number * (number + 1) / 2
