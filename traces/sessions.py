"""Reader of recorded agent sessions: one session a JSON line, its requests a closed loop. Streams, a session at a time.

A request is sent when the one before has ended and its think time has passed. A sub-agent starts `think` after the last request of its
parent that stands before it, and then runs beside the parent, a chain of its own. Block ids are local to a session (full blocks
only) and become distinct here. Sessions have no arrival process among them: each starts at its own zero.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from traces.json_rows import Count, decode_lines
from traces.lines import Lines
from traces.schema import NO_HASHES, ROOT, BadRow, Row, TraceRequest

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
LocalId = Annotated[int, Meta(ge=0, le=2**40)]


class SessionEntry(Struct, rename={"num_prompt": "in", "num_output": "out", "kind": "type"}):
    """A request, or a sub-agent with requests of its own, as the file spells it."""

    t: Seconds
    """From the session's start, or from the sub-agent's."""
    kind: str
    num_prompt: Count = 0
    num_output: Count = 0
    hash_ids: list[LocalId] = []
    api_time: Seconds | None = None
    """What the service took."""
    think_time: Seconds | None = None
    """What the client waited before it sent this."""
    requests: "list[SessionEntry]" = []


class SessionLine(Struct, rename={"entries": "requests"}):
    """One session."""

    id: str
    block_size: Annotated[int, Meta(ge=1, le=1 << 20)]
    entries: list[SessionEntry]


def read_sessions(lines: Lines, block_size: int) -> Iterator[Row]:
    """Yields each session's requests in turn order; `block_size` is what every line must say."""
    first_free_id = 0
    session = 0
    for number, line in decode_lines(lines, SessionLine):
        if isinstance(line, BadRow):
            yield line
            continue
        if line.block_size != block_size:
            message = f"block_size is {line.block_size}, the lines before have {block_size}"
            yield BadRow(number, "bad_row", message)
            continue
        rows: list[TraceRequest] = []
        _add_chain(rows, line.entries, number, session, first_free_id, ROOT, 0.0, 0.0)
        if not rows:
            yield BadRow(number, "bad_row", "the session has no requests")
            continue
        wrong = next(
            (r for r in rows if r.hash_ids and len(r.hash_ids) != r.num_prompt // block_size), None
        )
        if wrong is not None:
            message = (
                f"turn {wrong.turn} has {len(wrong.hash_ids)} hash_ids, {wrong.num_prompt} tokens have "
                f"{wrong.num_prompt // block_size} full blocks of {block_size}"
            )
            yield BadRow(number, "bad_row", message)
            continue
        session += 1
        first_free_id = 1 + max(
            (max(row.hash_ids) for row in rows if row.hash_ids), default=first_free_id - 1
        )
        yield from rows


def _add_chain(
    rows: list[TraceRequest],
    entries: Sequence[SessionEntry],
    line: int,
    session: int,
    id_offset: int,
    before: int,
    free_s: float,
    start_s: float,
) -> None:
    """Appends the requests of a chain that starts at `start_s` of its session and, where they stand, its sub-agents' chains.

    Args:
        rows: The session's requests so far.
        entries: The chain.
        line: Of the file.
        session: The session's number.
        id_offset: What makes the session's block ids distinct.
        before: The turn that the chain's first request follows.
        free_s: When that turn had ended, as recorded.
        start_s: What the entries' `t` counts from.
    """
    is_first = True
    for entry in entries:
        at_s = start_s + entry.t
        if entry.kind == "subagent":
            _add_chain(rows, entry.requests, line, session, id_offset, before, free_s, at_s)
            continue
        think_s = None if is_first else entry.think_time
        if think_s is None:
            think_s = max(0.0, at_s - free_s)
        turn = len(rows)
        rows.append(
            TraceRequest(
                line,
                round(at_s * 1e9),
                entry.num_prompt,
                entry.num_output,
                array("q", [i + id_offset for i in entry.hash_ids])
                if entry.hash_ids
                else NO_HASHES,
                session,
                turn,
                before,
                round(think_s * 1e9) if before != ROOT else 0,
            )
        )
        is_first = False
        before = turn
        free_s = at_s + (entry.api_time or 0.0)
