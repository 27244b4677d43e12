"""Under what names clients' content appears in records: dense ids, equal where the content is, and nothing else of it.

An id stands for a whole prefix up to a block's end. Knows tokens and rows; knows no files. Only accepted tokens count, so
nothing is ever taken back.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from engine.core.arrays import I32
from engine.core.content import TokenContent, TraceContent
from engine.core.ids import RequestId
from engine.core.plan import Request

Blocks = tuple[tuple[int, int], ...]
"""(place, id) of the entries of a column that complete a block."""


class Aliases(Protocol):
    """Names for what one drive of the core is told."""

    def prompt(self, request: Request) -> tuple[int, ...] | None:
        """An id for each full block of the prompt; None where it has no content. Remembered until `forget`."""
        ...

    def begin(self, request: RequestId, row: int) -> None:
        """`row` continues the prompt of `request` from now on."""
        ...

    def forget(self, request: RequestId) -> None:
        """No more rows will begin with this prompt. Any number of times."""
        ...

    def accept(self, rows: I32, positions: I32, tokens: I32) -> Blocks:
        """tokens[i] stands at positions[i] of rows[i]; an id for each that completes a block of a row with content."""
        ...

    def move(self, rows: I32, parents: I32) -> None:
        """Each of `rows` has the content of its parent from now on, all at once."""
        ...

    def number(self, name: str) -> int:
        """An id for a salt or a tenant."""
        ...


class DenseAliases:
    """Ids in order of first appearance. Keeps every block that it has named, to compare by equality."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._ids: dict[tuple[int, bytes], int] = {}
        self._names: dict[str, int] = {}
        self._prompts: dict[RequestId, tuple[int, I32]] = {}
        """(id of the last full block, -1 for none; the tokens after it)."""
        self._last: dict[int, int] = {}
        """By row with content: the id of its last full block."""
        self._tails: I32 = np.zeros((8, block_size), np.int32)

    def prompt(self, request: Request) -> tuple[int, ...] | None:
        """See `Aliases`. O(tokens)."""
        if not isinstance(request.content, TokenContent):
            return None
        tokens, size = request.content.tokens, self._size
        whole = len(tokens) // size * size
        last, ids = -1, []
        for block in tokens[:whole].reshape(-1, size):
            last = self._name(last, block)
            ids.append(last)
        self._prompts[request.id] = (last, tokens[whole:])
        return tuple(ids)

    def begin(self, request: RequestId, row: int) -> None:
        """See `Aliases`."""
        self._last.pop(row, None)
        if request not in self._prompts:
            return
        self._last[row], tail = self._prompts[request]
        self._reserve(row)
        self._tails[row, : len(tail)] = tail

    def forget(self, request: RequestId) -> None:
        """See `Aliases`."""
        self._prompts.pop(request, None)

    def accept(self, rows: I32, positions: I32, tokens: I32) -> Blocks:
        """See `Aliases`."""
        if not len(rows):
            return ()
        self._reserve(int(rows.max()))
        places = positions % self._size
        self._tails[rows, places] = tokens
        blocks = []
        for i in np.flatnonzero(places == self._size - 1).tolist():
            row = int(rows[i])
            if row in self._last:
                self._last[row] = self._name(self._last[row], self._tails[row])
                blocks.append((i, self._last[row]))
        return tuple(blocks)

    def move(self, rows: I32, parents: I32) -> None:
        """See `Aliases`."""
        self._tails[rows] = self._tails[parents]
        last = {
            row: self._last.get(p) for row, p in zip(rows.tolist(), parents.tolist(), strict=True)
        }
        self._last.update({row: block for row, block in last.items() if block is not None})

    def number(self, name: str) -> int:
        """See `Aliases`."""
        return self._names.setdefault(name, len(self._names))

    def _reserve(self, row: int) -> None:
        if row >= len(self._tails):
            more = np.zeros((max(row + 1, 2 * len(self._tails)), self._size), np.int32)
            more[: len(self._tails)] = self._tails
            self._tails = more

    def _name(self, parent: int, block: I32) -> int:
        return self._ids.setdefault((parent, block.tobytes()), len(self._ids))


class PlainAliases:
    """For a replay, whose tokens are ids already: the last of each block is the block's id. Names are numbers.

    A trace's block hashes stand for prompts as they are.
    """

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._prompts: set[RequestId] = set()
        self._rows: set[int] = set()

    def prompt(self, request: Request) -> tuple[int, ...] | None:
        """See `Aliases`."""
        if isinstance(request.content, TraceContent):
            return tuple(request.content.ids.tolist())
        if not isinstance(request.content, TokenContent):
            return None
        self._prompts.add(request.id)
        return tuple(request.content.tokens[self._size - 1 :: self._size].tolist())

    def begin(self, request: RequestId, row: int) -> None:
        """See `Aliases`."""
        if request in self._prompts:
            self._rows.add(row)
        else:
            self._rows.discard(row)

    def forget(self, request: RequestId) -> None:
        """See `Aliases`."""
        self._prompts.discard(request)

    def accept(self, rows: I32, positions: I32, tokens: I32) -> Blocks:
        """See `Aliases`."""
        ends = np.flatnonzero(positions % self._size == self._size - 1).tolist()
        return tuple((i, int(tokens[i])) for i in ends if int(rows[i]) in self._rows)

    def move(self, rows: I32, parents: I32) -> None:
        """See `Aliases`: ids say what their blocks hold, whoever has them."""

    def number(self, name: str) -> int:
        """See `Aliases`."""
        return int(name or 0)


class NoAliases:
    """Leaves content and names out of the records, which then tell what was decided but cannot be replayed."""

    def prompt(self, request: Request) -> tuple[int, ...] | None:
        """See `Aliases`."""
        return None

    def begin(self, request: RequestId, row: int) -> None:
        """See `Aliases`."""

    def forget(self, request: RequestId) -> None:
        """See `Aliases`."""

    def accept(self, rows: I32, positions: I32, tokens: I32) -> Blocks:
        """See `Aliases`."""
        return ()

    def move(self, rows: I32, parents: I32) -> None:
        """See `Aliases`."""

    def number(self, name: str) -> int:
        """See `Aliases`."""
        return 0


def replayed_tokens(num_tokens: int, block_size: int, ids: Sequence[int]) -> I32:
    """[num_tokens] a prompt whose blocks are equal exactly where `ids` are: each block's id, last in it, after zeros."""
    tokens = np.zeros(num_tokens, np.int32)
    tokens[block_size - 1 :: block_size] = ids
    return tokens
