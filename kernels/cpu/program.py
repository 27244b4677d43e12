"""Programs: lists of operations that a team of threads runs without returning to Python.

An operation is a record of `OPERATION_WORDS` int64: its code, then operands (addresses, sizes, float32 bits). Within an operation
threads claim items from a shared counter; between operations they meet at a barrier, so each sees all that came before. A whole
model step is one program, built once; what changes from step to step lies in the step's records (`steps.py`).

`enter` is the one compiled entry point of the package; everything it calls is compiled into it. Knows no Python objects.
"""

import platform

import numba
import numpy as np

from kernels.cpu import simd
from kernels.cpu.attention import attend_part, finish_row
from kernels.cpu.cache import copy_part, put_part
from kernels.cpu.linear import embed_row, gated_part, linear_part
from kernels.cpu.panels import normalise_row, quantise_row
from kernels.cpu.simd import fetch_add, load_f32, load_shared, store_i64, syscall
from kernels.cpu.steps import (
    BLOCK_SIZE,
    GROUP,
    HEAD_DIM,
    KIND,
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
GENERATION, STOP, ARRIVED, JOB, COUNTERS = 0, LINE, 2 * LINE, 3 * LINE, 4 * LINE
"""Byte offsets in the control block, each on a cache line of its own; counters take a line an operation."""
JOB_PROGRAM, JOB_LENGTH, JOB_BASE = 0, 1, 2
CONTROL_BYTES = COUNTERS + LINE * MAX_OPERATIONS

_FUTEX, _SCHED_YIELD = (98, 124) if platform.machine() == "aarch64" else (202, 24)
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129
_SPINS_BEFORE_YIELD, _SPINS_BEFORE_SLEEP = 400, 2000


@numba.njit(nogil=True)
def _barrier(control, target):
    """Returns once `target` arrivals have been counted since the team was made."""
    fetch_add(control + ARRIVED, 1)
    spins = 0
    while load_shared(control + ARRIVED) < target:
        simd.pause()
        spins += 1
        if spins > _SPINS_BEFORE_YIELD:
            syscall(_SCHED_YIELD, 0, 0, 0, 0)


@numba.njit(nogil=True)
def _rows_part(counter, code, p, scratch):
    """Takes items of the operations that work row by row."""
    rows = word(word(p, 1), 0)
    row = fetch_add(counter, 1)
    while row < rows:
        if code == EMBED:
            token = word(word(p, 2) + 8 * TOKEN_WORDS * row, TOKEN)
            embed_row(word(p, 3), word(p, 4), word(p, 5), token, word(p, 6) + row * word(p, 7))
        elif code == NORMALISE:
            chosen = word(word(p, 2), row) if word(p, 2) else row
            normalise_row(
                word(p, 3) + chosen * word(p, 4),
                word(p, 5),
                load_f32(p + 48),
                word(p, 7),
                word(p, 8),
                row,
            )
        elif code == QUANTISE:
            quantise_row(word(p, 2) + row * word(p, 3), word(p, 4), word(p, 5), row)
        else:
            header, out, stride = word(p, 2), word(p, 5), word(p, 6)
            kv_heads, group, head_dim = (
                word(header, KV_HEADS),
                word(header, GROUP),
                word(header, HEAD_DIM),
            )
            finish_row(
                row, word(p, 3), word(p, 4), kv_heads, group, head_dim, out, stride, word(p, 7)
            )
            if word(p, 8):
                quantise_row(out + row * stride, kv_heads * group * head_dim // 32, word(p, 8), row)
        row = fetch_add(counter, 1)


@numba.njit(nogil=True)
def _operate(counter, p, rank, scratch):
    code = word(p, 0)
    if code == LINEAR:
        linear_part(
            counter,
            word(p, 2),
            word(p, 3),
            word(p, 4),
            word(p, 5),
            word(p, 6),
            word(p, 7),
            word(p, 8),
            word(p, 9),
            word(p, 10),
            word(word(p, 1), 0),
            scratch,
        )
    elif code == GATED:
        gated_part(
            counter,
            word(p, 2),
            word(p, 3),
            word(p, 4),
            word(p, 5),
            word(p, 6),
            word(p, 7),
            word(word(p, 1), 0),
            scratch,
        )
    elif code == PUT:
        put_part(
            counter,
            word(p, 1),
            word(p, 2),
            word(p, 3),
            word(p, 4),
            word(p, 5),
            word(p, 6),
            word(p, 7),
            load_f32(p + 64),
            scratch,
        )
    elif code == ATTEND:
        header = word(p, 1)
        attend_part(
            counter,
            header,
            word(p, 2),
            word(p, 3),
            word(p, 4),
            word(p, 5),
            word(header, KIND),
            word(header, KV_HEADS),
            word(header, GROUP),
            word(header, HEAD_DIM),
            word(header, BLOCK_SIZE),
            word(p, 6),
            word(p, 7),
            word(p, 8),
            scratch,
        )
    elif code == COPY:
        copy_part(counter, word(p, 1), word(p, 2), word(p, 3), word(p, 4), word(p, 5), word(p, 6))
    elif code == PREPARE:
        if rank == 0:
            header = word(p, 1)
            prepare(
                header, word(p, 2), word(p, 3), word(p, 4), word(header, BLOCK_SIZE), word(p, 5)
            )
    else:
        _rows_part(counter, code, p, scratch)


@numba.njit(nogil=True)
def _run(control, program, length, threads, base, rank, scratch):
    for i in range(length):
        _operate(control + COUNTERS + LINE * i, program + 8 * OPERATION_WORDS * i, rank, scratch)
        if threads > 1:
            _barrier(control, base + threads * (i + 1))


SIGNATURE = "void(int64, int64, int64, int64, int64, int64)"


def enter(control, rank, threads, scratch, program, length):
    """Rank 0 runs `program` with the team and returns. Every other rank serves until the stop word is set.

    `scratch` is the caller's own, of the size its operations need. Compiled by `build.entry`.
    """
    if rank == 0:
        for i in range(length):
            store_i64(control + COUNTERS + LINE * i, 0)
        base = load_shared(control + ARRIVED)
        store_i64(control + JOB + 8 * JOB_PROGRAM, program)
        store_i64(control + JOB + 8 * JOB_LENGTH, length)
        store_i64(control + JOB + 8 * JOB_BASE, base)
        if threads > 1:
            fetch_add(control + GENERATION, 1)
            syscall(_FUTEX, control + GENERATION, _FUTEX_WAKE, threads, 0)
        _run(control, program, length, threads, base, 0, scratch)
        return
    seen = 0
    while True:
        spins = 0
        while load_shared(control + GENERATION) == seen:
            simd.pause()
            spins += 1
            if spins > _SPINS_BEFORE_SLEEP:
                syscall(_FUTEX, control + GENERATION, _FUTEX_WAIT, seen & 0x7FFFFFFF, 0)
        seen += 1
        if load_shared(control + STOP) != 0:
            return
        _run(
            control,
            word(control + JOB, JOB_PROGRAM),
            word(control + JOB, JOB_LENGTH),
            threads,
            word(control + JOB, JOB_BASE),
            rank,
            scratch,
        )


def float_bits(value: float) -> int:
    """The operand word of a float32."""
    return int(np.float32(value).view(np.int32))
