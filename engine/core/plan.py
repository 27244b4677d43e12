"""What crosses the core's interface: requests and results in, plans and outcomes out. All frozen, columns not objects.

Arrays are marked non-writable by whoever makes them. One array a field: a Struct per row costs more than the step.
"""

from enum import IntEnum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.core.ids import RequestId

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
I8 = NDArray[np.int8]
Bools = NDArray[np.bool_]


class Finish(IntEnum):
    """Why a request ended. `NONE` in a column means: it goes on."""

    NONE = 0
    LENGTH = 1
    """It produced `max_tokens` tokens; decided by the core."""
    STOP = 2
    """A stop token or stop string, found outside the core and reported in `Results.stops`."""
    FAILED = 3
    """The model failed for it, reported in `Results.stops` or by `StepFailed`."""
    ABORTED = 4
    """The driver called `abort`."""


class Request(Struct, frozen=True):
    """One prompt to continue. The core sees lengths only."""

    id: RequestId
    num_prompt: int
    """Prompt length in tokens."""
    max_tokens: int | None = None
    """Most tokens to generate; None: what context and pool leave, min(context, pool) - prompt."""


class Rejected(Struct, frozen=True):
    """The request can never run here; nothing was changed. `message` is one sentence for the client."""

    code: str
    """`empty_prompt`, `bad_max_tokens`, `context_exceeded` or `pool_exceeded`."""
    message: str


class Plan(Struct, frozen=True, eq=False):
    """One step: which positions of which rows to compute. Rows are in running order, decodes before prompt chunks."""

    step: int
    """Numbered from 0, without gaps; plans commit in this order."""
    rows: I32
    requests: I64
    """`RequestId` of each row."""
    starts: I32
    """First position to compute; the positions before it are in the KV cache when the step runs."""
    counts: I32
    """Positions to compute, at least 1. Decode: 1."""
    samples: Bools
    """True where the row's last position is its last known token, so that a token at position `start + count` is sampled."""
    num_decodes: int
    """The first `num_decodes` rows compute exactly the token that the step before sampled."""
    admitted: tuple[tuple[RequestId, int], ...]
    """(request, row) of each request that gets its row with this plan. A row keeps its request through preemption."""
    delta_rows: I32
    """Block-table entries that changed since the plan before: table[delta_rows, delta_cols] = delta_blocks."""
    delta_cols: I32
    delta_blocks: I32

    @property
    def num_tokens(self) -> int:
        """Positions computed by this step."""
        return int(self.counts.sum())


class Idle(Struct, frozen=True):
    """Nothing to run until a request arrives."""


class Blocked(Struct, frozen=True):
    """There is work, but an open plan must commit first."""


class Results(Struct, frozen=True, eq=False):
    """What a step sampled: one entry for each row of the plan that samples, in plan order."""

    rows: I32
    tokens: I32
    """Sampled token ids; the twin, which has none, gives 0."""
    stops: I8
    """`Finish.NONE`, or `STOP` / `FAILED` found outside the core. A stopping token still counts as generated."""


class StepFailed(Struct, frozen=True):
    """The whole step failed: every request that its plan names ends as `FAILED`."""

    message: str


class Outcome(Struct, frozen=True, eq=False):
    """What a commit changed. Results of rows that ended before the commit are discarded and not in here."""

    step: int
    rows: I32
    requests: I64
    tokens: I32
    """Accepted tokens in plan order."""
    ended: I64
    """Requests that ended with this commit, in plan order; each request ends exactly once."""
    reasons: I8
    """`Finish` of each of `ended`."""


class MemoryReport(Struct, frozen=True):
    """The pool at this moment. `free + held == total` frames; token counts in token positions."""

    block_size: int
    total_blocks: int
    free_blocks: int
    held_blocks: int
    used_tokens: int
    """Positions that hold a computed token state."""
    allocated_tokens: int
    """Positions of held frames; allocated - used is allocated and not (yet) used."""
    num_running: int
    num_waiting: int
