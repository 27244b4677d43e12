"""What must hold between memory, rows, groups and open plans after every call. Changes nothing."""

import numpy as np

from engine.core.book import Book
from engine.core.errors import InvariantError
from engine.core.rows import State


def check_book(book: Book, num_transfers: int) -> None:
    """Raises `InvariantError` where memory, rows or groups break a stated invariant. O(frames + rows)."""
    book.memory.check_invariants()
    memory, table = book.memory, book.table
    size = memory.block_size
    if not np.array_equal(np.sort(book.running()), np.flatnonzero(table.state == State.RUNNING)):
        raise InvariantError("the running lists and the rows' states disagree")
    computed = book.computed()
    for row in range(len(table.state)):
        held, state = memory.held_by(row), table.state[row]
        if state == State.RUNNING:
            scheduled = table.scheduled[row]
            if not 0 <= computed[row] <= scheduled < table.limit[row]:
                raise InvariantError(f"row {row} has its positions out of order")
            longest = max(int(table.known[row]), int(scheduled) + 1)
            if not scheduled <= held * size < longest + size:
                raise InvariantError(f"row {row} has {held} blocks for {longest} tokens")
        elif held and state == State.ENDED and not book.named(row):
            raise InvariantError(f"row {row} is over and holds blocks")
        elif held and state in (State.FREE, State.FORMING):
            raise InvariantError(f"row {row} does not run and holds blocks")
    rows = [row for group in book.groups.values() for row in group.rows]
    over = [r for r in range(len(table.state)) if table.state[r] == State.ENDED]
    if sorted(rows + over) != np.flatnonzero(table.state != State.FREE).tolist():
        raise InvariantError("groups and rows disagree")
    idle = not rows and not over and not num_transfers and not book.open
    if idle and memory.free_blocks != memory.total_blocks:
        raise InvariantError("blocks are held though no sequence is left")
