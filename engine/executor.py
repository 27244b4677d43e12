"""What the loop asks of a model runner, and what a sequence is to it. Knows plans and tokens; knows no queues and no clients."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.beams import BeamStep
from engine.core.ids import RequestId
from engine.core.plan import Plan


class SamplingParams(Struct, frozen=True, kw_only=True):
    """How tokens are drawn. Counter-based: the draw depends on (seed, index, position) only, never on the batch."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    seed: int = 0
    """64-bit; the driver draws one where the client gives none."""
    min_p: float = 0.0
    """Least probability of a token that is drawn, as a share of the largest; 0 is off."""
    repetition_penalty: float = 1.0
    """Above 1: tokens of prompt and answer become less likely; 1 is off."""
    presence_penalty: float = 0.0
    """Taken from the logit of each token that was generated."""
    frequency_penalty: float = 0.0
    """Taken from it once for each time."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, added to its logit), each token once."""
    min_tokens: int = 0
    """Before so many were generated, none of `stop_ids` is drawn."""
    stop_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    """Report the log-probability of each token, and of so many of the most probable ones."""

    @property
    def penalises(self) -> bool:
        """Whether the draw depends on which tokens are there already."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def adjusts(self) -> bool:
        """Whether logits must be changed before the draw."""
        return self.penalises or bool(self.logit_bias) or self.min_tokens > 0


class TokenLogprobs(Struct, frozen=True):
    """How probable a sampled token was, and what would have been more so. Natural logarithms."""

    logprob: float
    top_ids: tuple[int, ...] = ()
    """The most probable tokens, most probable first."""
    top_logprobs: tuple[float, ...] = ()


class BeamParams(Struct, frozen=True):
    """A beam search: the sequences of the request are its hypotheses, and scores decide instead of draws."""

    ends: frozenset[int]
    """Tokens that end an answer."""


class NewSequence(Struct, frozen=True, eq=False):
    """A sequence that the runner meets for the first time: it takes over `row`, whatever was there before.

    Sequences of one request share its prompt; those after the first begin to sample when a plan forks them.
    """

    row: int
    request: RequestId
    prompt: NDArray[np.int32]
    """[num_prompt] token ids."""
    sampling: SamplingParams
    index: int = 0
    """Which sequence of its request."""
    salt: str = ""
    """Frames that hold its content may be those of a sequence with equal content and salt, and of no other."""
    beam: BeamParams | None = None
    """Given to every hypothesis of a beam search."""


class Sampled(Struct, frozen=True, eq=False):
    """What one step sampled: an entry for each row of `Plan.sampling`, in that order."""

    tokens: NDArray[np.int32]
    failures: tuple[tuple[int, str], ...] = ()
    """(index into `tokens`, message) for rows whose logits were unusable; their token is 0."""
    logprobs: tuple[tuple[int, TokenLogprobs], ...] = ()
    """(index into `tokens`, what was asked) for rows that ask for it."""
    beams: tuple[tuple[RequestId, BeamStep], ...] = ()
    """How each beam of the step goes on; the entries of a `BeamStep` are the beam's rows, in order of their sequences."""
    parents: NDArray[np.int32] | None = None
    """For each of `tokens`, the row whose history it continues, where the step has beams."""


class Executor(Protocol):
    """A model over a pool of KV blocks. `execute` is called from one worker thread, plans in order, one at a time.

    The runner keeps for each row: its block table (changed only by plan deltas), and its token ids (prompt, then what it
    sampled itself), so that a plan may be executed before the driver has seen the step before.

    A step that fails has been taken in all the same: its `new` rows and its table deltas count for the steps after it, which name only what
    has changed since. Its positions and its copies hold anything.
    """

    num_blocks: int
    block_size: int
    host_blocks: int
    """Blocks of host memory beside the pool."""
    max_context: int
    vocab_size: int

    def execute(self, plan: Plan, new: Sequence[NewSequence]) -> Sampled:
        """Takes in `new`, applies the plan's table deltas, copies blocks, computes positions, samples, forks.

        Raises:
            ExecutorError: the step failed as a whole; state of the named rows is unknown.
        """
        ...

    def copy_out(self, frames: NDArray[np.int32], hosts: NDArray[np.int32]) -> None:
        """Copies frames[i] to host block hosts[i]. One transfer at a time, from a thread of its own, beside `execute`.

        Raises:
            ExecutorError: the copy failed; what was to be written holds anything. The same for `copy_in`.
        """
        ...

    def copy_in(self, frames: NDArray[np.int32], hosts: NDArray[np.int32]) -> None:
        """Copies host block hosts[i] to frames[i]."""
        ...

    def close(self) -> None:
        """Frees device memory and threads."""
        ...
