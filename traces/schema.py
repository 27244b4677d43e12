"""What a row of a trace is, whatever format it came from. Knows no file format and no scheduler.

Every row of a file becomes exactly one `TraceRequest` or one `BadRow`, so that counts add up.
"""

from typing import Final

from msgspec import Struct

MAX_TOKENS: Final = 2**31 - 1
"""Lengths beyond this are a broken row; the core counts positions in 32 bits."""


class TraceRequest(Struct, frozen=True):
    """One request of a trace: when it came and how long it was. Content is known by block hashes at most."""

    line: int
    """Line of the file, from 1."""
    arrival_ns: int
    """From the first arrival of the trace; readers of a format count from its own origin, `Trace` rebases."""
    num_prompt: int
    """Prompt length in tokens."""
    num_output: int
    """Generated tokens."""
    hash_ids: tuple[int, ...] = ()
    """One id for each block of the prompt, each standing for the whole prefix up to it; empty: not known."""


class BadRow(Struct, frozen=True):
    """A line that is no request, and why."""

    line: int
    code: str
    """`bad_row`, `bad_timestamp`, `bad_tokens`, `out_of_order` or `damaged_file`."""
    message: str
    """One sentence: the field, what it holds, what would be right."""
