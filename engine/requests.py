"""What the gateway hands to the live engine and what comes back. Knows tokens and text; knows no HTTP and no blocks."""

from enum import StrEnum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.executor import SamplingParams, TokenLogprobs


class FinishReason(StrEnum):
    """Why a stream ended, in the words that clients know; `error` and `abort` never look like success."""

    STOP = "stop"
    LENGTH = "length"
    TIMEOUT = "timeout"
    """Its deadline passed; what came before stands."""
    ERROR = "error"
    ABORT = "abort"


class BeamSearch(Struct, frozen=True, kw_only=True):
    """Search for the likeliest answers instead of drawing them. `num_sequences` of the generation are told at the end."""

    width: int
    """Hypotheses that are kept, at least `num_sequences`."""
    length_penalty: float = 1.0
    """Answers rank by sum of log probabilities / length ** length_penalty."""


class Generation(Struct, frozen=True, kw_only=True, eq=False):
    """One prompt to continue, in one or several sequences."""

    prompt: NDArray[np.int32]
    """[num_prompt] token ids, at least one."""
    max_tokens: int | None = None
    """None: what context and pool leave."""
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    """Generation ends before the first of these, whose text is delivered with `include_stop` only."""
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    """Generation also ends with these; they are not shown."""
    include_stop: bool = False
    """Deliver the text of the stop string that ended the answer."""
    num_sequences: int = 1
    """How many answers (`n`, `best_of`); the prompt is computed once."""
    salt: str = ""
    """The cache of equal prompts is shared only among generations of equal salt."""
    tenant: str = ""
    weight: float = 1.0
    """The tenant's fair share."""
    priority: int = 0
    """Class: smaller goes first."""
    beam: BeamSearch | None = None
    deadline_ms: int | None = None
    """From its opening; what has not ended by then ends with `TIMEOUT`."""

    @property
    def num_rows(self) -> int:
        """Sequences that run at once: all hypotheses of a beam search, not only those that are told."""
        return self.num_sequences if self.beam is None else self.beam.width


class Delta(Struct, frozen=True):
    """What has come since the last read of one choice. Several steps' tokens are merged when the reader is slow."""

    text: str
    """Whole characters only; may be empty."""
    num_tokens: int
    """Generated tokens that this delta accounts for."""
    finish: FinishReason | None = None
    """Set on the last delta of each choice, exactly once."""
    error: str | None = None
    """One sentence, where `finish` is `ERROR`."""
    index: int = 0
    """Which choice: 0 to `num_sequences` - 1."""
    logprobs: tuple[tuple[int, TokenLogprobs], ...] = ()
    """(token, what is known of it), one for each of `num_tokens` where the generation asked for it."""
