"""What blocks hold, as keys that compare by equality. Knows tokens and trace ids; knows no frames.

A key is one row of a 2-D integer array: live, the block's token ids; from a trace, the id of the trace block that covers
the KV block's last position (such an id stands for a whole prefix, and its depth is given by the parent entry).
"""

import numpy as np
from msgspec import Struct

from engine.core.arrays import I32, I64

Keys = I32 | I64
"""[blocks, words]; two blocks are equal where their rows are, under equal parents."""


class TokenContent(Struct, frozen=True, eq=False):
    """A prompt's token ids; generated tokens continue it."""

    tokens: I32


class TraceContent(Struct, frozen=True, eq=False):
    """Block hashes of a public trace: any KV block size over any trace block size. Generated tokens have no key."""

    ids: I64
    """One id for each `trace_block` tokens of the prompt; positions beyond them have no key."""
    trace_block: int


Content = TokenContent | TraceContent


class RowContents:
    """The known content of each row, and its salt; what a row generates is appended to its tokens."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._tokens: I32 = np.zeros((1, 64), np.int32)
        self._sources: dict[int, Content] = {}
        self._keyed: dict[int, int] = {}
        """Of rows whose content is ids: positions that have a key, which generated ones never do."""
        self._num_token_rows = 0
        self.salts: dict[int, str] = {}

    def open(self, row: int, content: Content, salt: str, num_prompt: int) -> None:
        """`row` starts with `content`, which describes its `num_prompt` first positions."""
        self._sources[row] = content
        self.salts[row] = salt
        if isinstance(content, TokenContent):
            self._num_token_rows += 1
            self._reserve(row, len(content.tokens))
            self._tokens[row, : len(content.tokens)] = content.tokens
        else:
            # The last id may stand for a partly filled trace block.
            self._keyed[row] = min(num_prompt, len(content.ids) * content.trace_block)

    def fork(self, parent: int, child: int, num_tokens: int) -> None:
        """`child` starts with the first `num_tokens` tokens of `parent`."""
        self._sources[child] = self._sources[parent]
        self.salts[child] = self.salts[parent]
        if isinstance(self._sources[parent], TokenContent):
            self._num_token_rows += 1
            self._reserve(child, num_tokens)
            self._tokens[child, :num_tokens] = self._tokens[parent, :num_tokens]
        else:
            self._keyed[child] = self._keyed[parent]

    def move(self, rows: list[int], parents: list[int]) -> None:
        """Each of `rows` has the tokens of its parent from now on, all at once."""
        if isinstance(self._sources.get(rows[0]), TokenContent):
            self._tokens[rows] = self._tokens[parents]

    def close(self, row: int) -> None:
        """`row` has no content any more."""
        self.salts.pop(row, None)
        self._num_token_rows -= isinstance(self._sources.pop(row, None), TokenContent)

    @property
    def keeps_tokens(self) -> bool:
        """Whether any row's content is known by its tokens, and so grows."""
        return self._num_token_rows > 0

    def accept(self, rows: I32, positions: I32, tokens: I32) -> None:
        """tokens[i] stands at positions[i] of rows[i]; rows without content ignore it."""
        if not self._num_token_rows or not len(rows):
            return
        self._reserve(int(rows.max()), int(positions.max()) + 1)
        self._tokens[rows, positions] = tokens

    def _reserve(self, row: int, width: int) -> None:
        rows, columns = self._tokens.shape
        if row < rows and width <= columns:
            return
        grown = np.zeros(
            (
                rows if row < rows else max(row + 1, 2 * rows),
                columns if width <= columns else 2 * width,
            ),
            np.int32,
        )
        grown[:rows, :columns] = self._tokens
        self._tokens = grown

    def num_keys(self, row: int, num_tokens: int) -> int:
        """How many of the first full blocks within `num_tokens` known positions have a key."""
        source = self._sources.get(row)
        if source is None:
            return 0
        if isinstance(source, TraceContent):
            num_tokens = min(num_tokens, self._keyed[row])
        return num_tokens // self._block_size

    def ends(self, row: int, num_blocks: int) -> bool:
        """Whether no block after the first `num_blocks` will ever have a key."""
        source = self._sources[row]
        if isinstance(source, TokenContent):
            return False
        return num_blocks >= self._keyed[row] // self._block_size

    def width(self, row: int) -> int:
        """Words in a key of `row`."""
        return self._block_size if isinstance(self._sources[row], TokenContent) else 1

    def first_with(self, rows: list[int], block: int, key: Keys) -> int | None:
        """The first of `rows`, whose keys have the width of `key`, that has it for its block number `block`."""
        for row in rows:
            has_key = self.num_keys(row, (block + 1) * self._block_size) > block
            if has_key and np.array_equal(self.keys(row, block, block + 1)[0], key):
                return row
        return None

    def keys(self, row: int, first: int, last: int) -> Keys:
        """Keys of blocks [first, last), all inside `num_keys`: valid until the next change."""
        size, source = self._block_size, self._sources[row]
        if isinstance(source, TraceContent):
            ends = np.arange(first + 1, last + 1) * size - 1
            return source.ids[ends // source.trace_block][:, None]
        return self._tokens[row, first * size : last * size].reshape(-1, size)
