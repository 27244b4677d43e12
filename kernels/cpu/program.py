"""Programs: lists of operations that a team of threads runs without returning to Python.

An operation is a record of `OPERATION_WORDS` int64: its code, then operands (addresses, sizes, float32 bits), as its `..._part`
function lists them. Threads claim an operation's items from a shared counter, and go on to the next operation when all items are done.
They wait for items, not for each other: a thread that the system has put aside while it held none holds up nobody. A whole model
step is one program, built once; what changes from step to step lies in the step's records (`steps.py`).

`enter` is the one compiled entry point of the package; everything it calls is compiled into it. Knows no Python objects.
"""

import platform

import numba
import numpy as np

from kernels.cpu.attention import attend_part, finish_row
from kernels.cpu.cache import copy_part, put_part
from kernels.cpu.linear import embed_row, gated_part, linear_part
from kernels.cpu.panels import normalise_row, quantise_row
from kernels.cpu.shared import fetch_add, load_shared, pause, swap_if, syscall
from kernels.cpu.simd import load_f32, store_i64
from kernels.cpu.steps import (
    BLOCK_SIZE,
    GROUP,
    HEAD_DIM,
    KV_HEADS,
    TOKEN,
    TOKEN_WORDS,
    prepare,
    word,
)

OPERATION_WORDS = 16
PREPARE, EMBED, NORMALISE, QUANTISE, LINEAR, GATED, PUT, ATTEND, FINISH, COPY = range(10)
MAX_OPERATIONS = 2048

LINE = 64
GENERATION, STOP, GATE, LEFT, JOB, COUNTERS = (LINE * i for i in range(6))
"""Byte offsets in the control block, a cache line each. Counters take two lines an operation: items claimed, items done."""
JOB_PROGRAM, JOB_LENGTH = 0, 1
CONTROL_BYTES = COUNTERS + 2 * LINE * MAX_OPERATIONS
OPEN = 1 << 15
"""GATE is generation * 2**16, plus OPEN while threads may join the run, plus how many have. LEFT counts those that are through."""

_FUTEX, _SCHED_YIELD = (98, 124) if platform.machine() == "aarch64" else (202, 24)
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129
_SPINS_BEFORE_YIELD, _SPINS_BEFORE_SLEEP = 400, 2000


@numba.njit(nogil=True)
def _wait(counter, target):
    """Returns once a shared counter has reached `target`."""
    spins = 0
    while load_shared(counter) < target:
        pause()
        spins += 1
        if spins > _SPINS_BEFORE_YIELD:
            syscall(_SCHED_YIELD, 0, 0, 0, 0)


@numba.njit(nogil=True)
def _rows_part(counter, p):
    """Takes items of the operations that work row by row.

    Operands, after rows (address):
        EMBED: token records, weights, extra, groups, out, bytes between its rows.
        NORMALISE: row numbers (0: all), float32 rows, bytes between them, weight, bits of epsilon, groups, out (a panel).
        QUANTISE: float32 rows, bytes between them, groups, out (a panel).
        FINISH: header, sequence records, token records, attention's out, bytes between its rows, partials, panel (0: none).
    """
    code, rows = word(p, 0), word(word(p, 1), 0)
    mine = 0
    row = fetch_add(counter, 1)
    while row < rows:
        if code == EMBED:
            token = word(word(p, 2) + 8 * TOKEN_WORDS * row, TOKEN)
            embed_row(word(p, 3), word(p, 4), word(p, 5), token, word(p, 6) + row * word(p, 7))
        elif code == NORMALISE:
            chosen = word(word(p, 2), row) if word(p, 2) else row
            source = word(p, 3) + chosen * word(p, 4)
            normalise_row(source, word(p, 5), load_f32(p + 48), word(p, 7), word(p, 8), row)
        elif code == QUANTISE:
            quantise_row(word(p, 2) + row * word(p, 3), word(p, 4), word(p, 5), row)
        else:
            header, out, stride = word(p, 2), word(p, 5), word(p, 6)
            finish_row(row, header, word(p, 3), word(p, 4), out, stride, word(p, 7))
            if word(p, 8):
                width = word(header, KV_HEADS) * word(header, GROUP) * word(header, HEAD_DIM)
                quantise_row(out + row * stride, width // 32, word(p, 8), row)
        mine += 1
        row = fetch_add(counter, 1)
    return rows, mine


@numba.njit(nogil=True)
def _prepare_part(counter, p):
    """Takes the one item. Operands: header, sequence records, token records, items, tokens of an item of a prompt chunk."""
    if fetch_add(counter, 1):
        return 1, 0
    header = word(p, 1)
    prepare(header, word(p, 2), word(p, 3), word(p, 4), word(header, BLOCK_SIZE), word(p, 5))
    return 1, 1


@numba.njit(nogil=True, inline="always")
def _operate(counter, p, scratch):
    """Takes part in an operation until none of its items is left: (items, those done here)."""
    code = word(p, 0)
    if code == LINEAR:
        return linear_part(counter, p, scratch)
    if code == GATED:
        return gated_part(counter, p, scratch)
    if code == PUT:
        return put_part(counter, p, scratch)
    if code == ATTEND:
        return attend_part(counter, p, scratch)
    if code == COPY:
        return copy_part(counter, p)
    if code == PREPARE:
        return _prepare_part(counter, p)
    return _rows_part(counter, p)


@numba.njit(nogil=True)
def _join(control, generation):
    """Whether this thread now takes part in the run, which then waits for it at its end."""
    gate = load_shared(control + GATE)
    while gate >> 16 == generation and gate & OPEN:
        found = swap_if(control + GATE, gate, gate + 1)
        if found == gate:
            return True
        gate = found
    return False


SIGNATURE = "void(int64, int64, int64, int64, int64)"


def enter(control, rank, scratch, program, length):
    """Rank 0 runs `program` with whoever of the team comes, and returns. Other ranks serve until the stop word is set.

    `scratch` is the caller's own, of the size its operations need. Compiled by `build.entry`.
    """
    seen = 0
    while True:
        if rank == 0:
            _open(control, program, length)
        else:
            seen = _sleep(control, seen)
            if load_shared(control + STOP):
                return
            if not _join(control, seen):
                continue
            program, length = word(control + JOB, JOB_PROGRAM), word(control + JOB, JOB_LENGTH)
        for i in range(length):
            counter = control + COUNTERS + 2 * LINE * i
            items, mine = _operate(counter, program + 8 * OPERATION_WORDS * i, scratch)
            if mine:
                fetch_add(counter + LINE, mine)
            _wait(counter + LINE, items)
        if rank == 0:
            joined = fetch_add(control + GATE, -OPEN) & (OPEN - 1)
            _wait(control + LEFT, joined)
            return
        fetch_add(control + LEFT, 1)


@numba.njit(nogil=True)
def _open(control, program, length):
    """Sets up a run and wakes the team."""
    for i in range(length):
        store_i64(control + COUNTERS + 2 * LINE * i, 0)
        store_i64(control + COUNTERS + 2 * LINE * i + LINE, 0)
    store_i64(control + LEFT, 0)
    store_i64(control + JOB + 8 * JOB_PROGRAM, program)
    store_i64(control + JOB + 8 * JOB_LENGTH, length)
    generation = load_shared(control + GENERATION) + 1
    store_i64(control + GATE, (generation << 16) + OPEN)
    fetch_add(control + GENERATION, 1)
    syscall(_FUTEX, control + GENERATION, _FUTEX_WAKE, 1 << 20, 0)


@numba.njit(nogil=True)
def _sleep(control, seen):
    """Waits for a generation other than `seen`, and returns it: briefly spinning, then asleep."""
    spins = 0
    while load_shared(control + GENERATION) == seen:
        pause()
        spins += 1
        if spins > _SPINS_BEFORE_SLEEP:
            syscall(_FUTEX, control + GENERATION, _FUTEX_WAIT, seen & 0xFFFFFFFF, 0)
    return load_shared(control + GENERATION)


def float_bits(value: float) -> int:
    """The operand word of a float32."""
    return int(np.float32(value).view(np.int32))
