"""What the gateway hands to the live engine and what comes back. Knows tokens and text; knows no HTTP and no blocks."""

from enum import StrEnum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.executor import SamplingParams


class FinishReason(StrEnum):
    """Why a stream ended, in the words that clients know; `error` and `abort` never look like success."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"
    ABORT = "abort"


class Generation(Struct, frozen=True, kw_only=True, eq=False):
    """One prompt to continue."""

    prompt: NDArray[np.int32]
    """[num_prompt] token ids, at least one."""
    max_tokens: int | None = None
    """None: what context and pool leave."""
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    """Generation ends before the first of these; none of their text is ever delivered."""
    ignore_eos: bool = False


class Delta(Struct, frozen=True):
    """What has come since the last read. Several steps' tokens are merged when the reader is slow."""

    text: str
    """Whole characters only; may be empty."""
    num_tokens: int
    """Generated tokens that this delta accounts for."""
    finish: FinishReason | None = None
    """Set on the last delta of a stream, exactly once."""
    error: str | None = None
    """One sentence, where `finish` is `ERROR`."""
