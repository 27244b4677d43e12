"""What a row of a trace is, whatever format it came from. Knows no file format and no scheduler.

Every row of a file becomes exactly one `TraceRequest` or one `BadRow`, so that counts add up.
"""

from array import array
from typing import Final

from msgspec import Struct

MAX_TOKENS: Final = 2**31 - 1
"""Lengths beyond this are a broken row; the core counts positions in 32 bits."""

MAX_ARRIVAL_NS: Final = 2**62
"""Times beyond this are a broken row: 146 years."""

NO_HASHES: Final = array("q")
"""Of a request whose content is not known. Not to be changed."""

ROOT: Final = -1
"""In `TraceRequest.after`: waits for no other request."""


class TraceRequest(Struct, frozen=True):
    """One request of a trace: when it came and how long it was. Content is known by block hashes at most.

    A session is a conversation: its requests stand together in the trace, in turn order. A request whose `after` is a turn is
    sent `think_ns` after that turn of its session has ended (a closed loop); others come at `arrival_ns`.
    """

    line: int
    """Line of the file, from 1; row of a table."""
    arrival_ns: int
    """As recorded, from the first arrival of the trace; readers of a format count from its own origin, `Trace` rebases."""
    num_prompt: int
    """Prompt length in tokens."""
    num_output: int
    """Generated tokens."""
    hash_ids: "array[int]" = NO_HASHES
    """Int64, one for each block of the prompt (full ones, or the partial last one too), each standing for the whole prefix up
    to it; empty: not known."""
    session: int = ROOT
    """Numbered within the trace; -1: the request stands alone."""
    turn: int = 0
    """Place in its session."""
    after: int = ROOT
    """The turn of its session that must end before it is sent; -1: none."""
    think_ns: int = 0
    """From the end of that turn to the sending of this one."""


class BadRow(Struct, frozen=True):
    """A line that is no request, and why."""

    line: int
    code: str
    """`bad_row`, `bad_timestamp`, `bad_tokens`, `out_of_order` or `damaged_file`."""
    message: str
    """One sentence: the field, what it holds, what would be right."""


Row = TraceRequest | BadRow
