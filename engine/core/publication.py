"""Publication: which blocks of each row others can find. An index of what frames hold, and how far each row has come in it.

Blocks can be found as soon as `computed` says that they hold their states. Those of prompts enter the index then, generated ones
when a lookup comes to where they would be, or when their row leaves. Knows content, and which frames a row holds; hands out
none.
"""

import numpy as np

from engine.core.arrays import I32
from engine.core.content import RowContents
from engine.core.frontier import Frontier, Place
from engine.core.holdings import Holdings

_NOTHING: I32 = np.zeros(0, np.int32)
_SILENT = -1
"""In `_published`: the row publishes no (more) blocks."""


class Publication:
    """What the rows of `holdings` make findable."""

    def __init__(self, holdings: Holdings) -> None:
        self.contents = RowContents(holdings.block_size)
        self._block_size = holdings.block_size
        self._indexed = holdings.pool.indexed
        self._tables = holdings.tables
        self._index = holdings.index
        self._published: I32 = np.full(16, _SILENT, np.int32)
        self._computed: I32 = np.zeros(16, np.int32)
        """Positions whose states may be found."""
        self._fresh: I32 = np.zeros(16, np.int32)
        """Of rows that have published nothing of what they knew when they got their frames: how much that is. Others: 0."""
        self._frontier = Frontier()

    def find(self, row: int, num_tokens: int) -> I32:
        """Frames that hold the leading full blocks within the first `num_tokens` known positions of `row`."""
        contents, size = self.contents, self._block_size
        count = contents.num_keys(row, num_tokens)
        if not count:
            return _NOTHING
        salt, keys = contents.salts[row], contents.keys(row, 0, count)
        while True:
            hits = self._index.lookup(salt, keys)
            at = len(hits)
            if at == count:
                return hits
            place = int(hits[-1]) if at else (salt, keys.shape[1])
            standing = np.fromiter(self._frontier.rows_at(place), np.int32)
            rows = standing[self._computed[standing] >= (at + 1) * size]
            owner = contents.first_with(rows.tolist(), at, keys[at])
            if owner is None:
                return hits
            self.publish(owner, int(self._computed[owner]))

    def start(self, row: int, published: int, known: int) -> None:
        """`row`, which knows `known` positions, has its frames: the first `published` blocks are for others to publish."""
        if row >= len(self._published):
            more = max(row + 1 - len(self._published), len(self._published))
            for name, fill in (("_published", _SILENT), ("_computed", 0), ("_fresh", 0)):
                grown = np.append(getattr(self, name), np.full(more, fill, np.int32))
                setattr(self, name, grown)
        self._computed[row] = 0
        if row in self.contents.salts:
            self._fresh[row] = known
            self._stand(row, published)

    def fork(self, parent: int, child: int, known: int) -> None:
        """`child`, which knows `known` positions, shares the frames of `parent`, its content, and how far it has come."""
        if parent in self.contents.salts:
            self.contents.fork(parent, child, known)
        published = int(self._published[parent])
        self.start(child, 0, known)
        self._follow(child, published)

    def move(self, rows: list[int], parents: list[int]) -> None:
        """Each of `rows`, none of which is computed yet, has the frames of its parent, its content, and how far it has come."""
        counts = self._published[parents].tolist()
        self.contents.move(rows, parents)
        for row, published in zip(rows, counts, strict=True):
            self._computed[row] = 0
            self._follow(row, published)

    def _follow(self, row: int, published: int) -> None:
        """`row` publishes on from where the row whose frames it shares had come to."""
        if published == _SILENT:
            self.silence(row)
        else:
            self._stand(row, published)

    def _stand(self, row: int, published: int) -> None:
        """`row` has published, or shares, `published` blocks."""
        self._published[row] = published
        place: Place = (self.contents.salts[row], self.contents.width(row))
        if published:
            place = int(self._tables.blocks[row, published - 1])
        self._frontier.stand(row, place)

    def computed(self, positions: I32) -> None:
        """The first positions[row] positions of each row are known and computed: their full blocks can be found."""
        count = min(len(positions), len(self._computed))
        done, published = positions[:count], self._published[:count]
        self._computed[:count] = done
        due = (self._fresh[:count] > 0) & (done // self._block_size > published)
        for row in due.nonzero()[0].tolist():
            if done[row] >= self._fresh[row]:
                self._fresh[row] = 0
            self.publish(row, int(done[row]))

    def publish(self, row: int, num_tokens: int) -> None:
        """Makes the full blocks within `num_tokens` known and computed positions of `row` findable."""
        done = int(self._published[row])
        if done == _SILENT:
            return
        last = self.contents.num_keys(row, num_tokens)
        if last <= done:
            if self.contents.ends(row, done):
                self.silence(row)
            return
        frames = self._tables.of(row)
        if done and not self._indexed[frames[done - 1]]:
            return  # A sibling computes the parent and has not published it.
        added = self._index.publish(
            self.contents.salts[row],
            int(frames[done - 1]) if done else -1,
            self.contents.keys(row, done, last),
            frames[done:last],
        )
        if added:
            self._stand(row, done + added)
        else:
            self.silence(row)

    def silence(self, row: int) -> None:
        """`row` publishes nothing from now on: its computed content is not to be trusted."""
        self._published[row] = _SILENT
        self._computed[row] = self._fresh[row] = 0
        self._frontier.leave(row)
