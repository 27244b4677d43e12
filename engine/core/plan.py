"""What crosses the core's interface: requests and results in, plans and outcomes out. All frozen, columns not objects.

Arrays are marked non-writable by whoever makes them. One array a field: a Struct per row costs more than the step.
"""

from enum import IntEnum
from typing import Final

import numpy as np
from msgspec import Struct

from engine.core.arrays import I8, I32, I64, Bools
from engine.core.content import Content
from engine.core.ids import RequestId, TimeNs

NO_ENTRIES: Final[I32] = np.zeros(0, np.int32)
NO_ENTRIES.flags.writeable = False


class Finish(IntEnum):
    """Why a sequence ended. `NONE` in a column means: it goes on."""

    NONE = 0
    LENGTH = 1
    """It produced `max_tokens` tokens; decided by the core."""
    STOP = 2
    """A stop token or stop string, found outside the core and reported in `Results.stops`."""
    FAILED = 3
    """The model failed for it, reported in `Results.stops` or by `StepFailed`."""
    ABORTED = 4
    """The driver called `abort`."""
    DEADLINE = 5
    """Its deadline passed; found by `expire`."""


class Request(Struct, frozen=True, eq=False):
    """One prompt to continue, in one or several sequences. The core sees lengths, and content only as keys."""

    id: RequestId
    num_prompt: int
    """Prompt length in tokens."""
    max_tokens: int | None = None
    """Most tokens to generate for each sequence; None: what context and pool leave."""
    num_sequences: int = 1
    """Sequences that continue the prompt (`n`, `best_of`)."""
    content: Content | None = None
    """What the prompt holds; None: its blocks are never shared."""
    salt: str = ""
    """Content is shared only among requests of equal salt."""
    tenant: str = ""
    weight: float = 1.0
    """`fair`: the tenant's share."""
    priority: int = 0
    """Class: smaller goes first."""
    deadline: TimeNs | None = None
    beam: bool = False
    """The sequences are hypotheses of one beam search: each step's results say whose history each row goes on with."""


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
    admitted: tuple[tuple[RequestId, int, int], ...]
    """(request, index of the sequence in it, row) of each sequence that gets its row with this plan. A row keeps its sequence through preemption.

    The first sequence of each request also computes in this plan, and `starts` says how many of its positions were cached.
    """
    delta_rows: I32
    """Block-table entries that changed since the plan before: table[delta_rows, delta_cols] = delta_blocks."""
    delta_cols: I32
    delta_blocks: I32
    fork_from: I32 = NO_ENTRIES
    """Index into `rows` of the sampling row whose last logits fork_rows[i] samples from, too."""
    fork_rows: I32 = NO_ENTRIES
    """Rows that come into being with this step, sharing everything before the sampled token."""
    copy_sources: I32 = NO_ENTRIES
    """Frames to copy, to the frames at the same place of `copy_targets`, before anything is computed."""
    copy_targets: I32 = NO_ENTRIES

    move_rows: I32 = NO_ENTRIES
    """Rows that go on with the tokens of move_parents[i] before its last one, and keep their own last token: all at once,
    before anything else of this plan. Accepted `Results.parents` of the commits since the plan before."""
    move_parents: I32 = NO_ENTRIES

    @property
    def sampling(self) -> I32:
        """Rows for which the step samples a token: of `rows` those with `samples`, then `fork_rows`."""
        if self.num_decodes == len(self.rows):
            return self.rows
        rows = self.rows[self.samples]
        return np.concatenate([rows, self.fork_rows]) if len(self.fork_rows) else rows

    @property
    def sampled_positions(self) -> I32:
        """Where the token of each entry of `sampling` stands."""
        ends = self.starts + self.counts
        if self.num_decodes == len(self.rows):
            return ends
        return np.concatenate([ends[self.samples], ends[self.fork_from]])

    @property
    def num_tokens(self) -> int:
        """Positions computed by this step."""
        return int(self.counts.sum())


class Idle(Struct, frozen=True):
    """Nothing to run until a request arrives."""


class Blocked(Struct, frozen=True):
    """There is work, but an open plan must commit first."""


class Results(Struct, frozen=True, eq=False):
    """What a step sampled: one entry for each of `Plan.sampling`, in that order."""

    rows: I32
    tokens: I32
    """Sampled token ids; the twin, which has none, gives 0."""
    stops: I8
    """`Finish.NONE`, or `STOP` / `FAILED` found outside the core. A stopping token still counts as generated."""
    parents: I32 | None = None
    """Row, of the same beam, whose history the token continues; None: each its own."""


class StepFailed(Struct, frozen=True):
    """The whole step failed: every request that its plan names and that still runs ends as `FAILED`."""

    message: str


class Outcome(Struct, frozen=True, eq=False):
    """What a commit changed. Results of rows that ended before the commit are discarded and not in here."""

    step: int
    rows: I32
    requests: I64
    tokens: I32
    """Accepted tokens."""
    counts: I32
    """How many tokens of each row were accepted: 1."""
    ended_rows: I32
    """Rows whose sequence ended with this commit, in plan order; each sequence ends exactly once."""
    ended_requests: I64
    reasons: I8
    """`Finish` of each."""
    closed: tuple[RequestId, ...]
    """Requests whose last sequence ended with this commit."""


class Transfer(Struct, frozen=True, eq=False):
    """Copy blocks between the pools, then say so by `transfer_done`. May run beside steps."""

    id: int
    request: RequestId
    out: bool
    """True: frames to host. False: host to frames."""
    frames: I32
    hosts: I32


class MemoryReport(Struct, frozen=True):
    """The pool at this moment. free + cached + held + moving = total frames; token counts in token positions."""

    block_size: int
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    """Without an owner, content still findable, evictable."""
    held_blocks: int
    moving_blocks: int
    """Held by transfers and copies only."""
    used_tokens: int
    """Positions of held frames that hold a computed token state; a shared position counts once."""
    allocated_tokens: int
    """Positions of held frames; allocated - used is allocated and not (yet) used."""
    logical_blocks: int
    """Blocks that sequences would hold without sharing; sharing saves (logical - held) / logical (Kwon et al., 6.3)."""
    host_blocks: int
    host_used_blocks: int
    num_running: int
    num_waiting: int
    """Waiting, preempted or swapped out."""
    num_swapped: int = 0
