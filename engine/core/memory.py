"""BlockManager: paged KV memory. Holdings of frames, publication of what they hold, a host pool to swap to.

Knows rows, lengths and content; knows no requests, no queues, and not who should give way when frames run out.

Invariant, beside those of its parts: no frame is in two tables unless shared through the index or a fork.
"""

import numpy as np

from engine.core.accounting import memory_report
from engine.core.allocator import Grant, Move
from engine.core.arrays import I32
from engine.core.config import MemoryConfig
from engine.core.content import Content
from engine.core.holdings import Holdings
from engine.core.plan import MemoryReport
from engine.core.publication import Publication
from engine.core.swap import Layout, SwapSpace


class BlockManager(Holdings):
    """The paged `Allocator` (Kwon et al., SOSP 2023, section 4)."""

    def __init__(self, config: MemoryConfig) -> None:
        super().__init__(config.num_blocks, config.block_size)
        self._publication = Publication(self)
        self.contents = self._publication.contents
        self._prefix_cache = config.prefix_cache
        self.last_hits = 0
        """Cached blocks that the last granted admission shared."""
        self.host = SwapSpace(config.host_blocks)
        self._layouts: dict[int, Layout] = {}

    @property
    def shares_content(self) -> bool:
        """Whether any row has content, so that it may publish."""
        return bool(self.contents.salts)

    @property
    def keeps_tokens(self) -> bool:
        """Whether any row's content grows with what `accept` is told."""
        return self.contents.keeps_tokens

    def could_hold(self, num_shared: int, num_tokens: int, num_rows: int) -> bool:
        """Whether `num_rows` sequences of `num_tokens` positions, the first `num_shared` equal, fit when alone."""
        shared = (num_shared - 1) // self.block_size if num_rows > 1 else 0
        own = self.blocks_for(num_tokens) - shared
        return shared + num_rows * own <= self.total_blocks

    def longest(self, num_shared: int, num_rows: int) -> int:
        """The most positions that each of `num_rows` sequences can have when alone, the first `num_shared` equal."""
        shared = (num_shared - 1) // self.block_size if num_rows > 1 else 0
        return (shared + (self.total_blocks - shared) // num_rows) * self.block_size

    # -- sequences ---------------------------------------------------------------------------------------------

    def open(
        self, row: int, content: Content | None, salt: str, num_prompt: int, limit: int = 0
    ) -> None:
        """`row` stands for a sequence that starts with `num_prompt` positions of `content`; it holds nothing yet. Any limit is as good."""
        if content is not None and self._prefix_cache:
            self.contents.open(row, content, salt, num_prompt)

    def close(self, row: int) -> None:
        """The sequence of `row`, which holds nothing, is over."""
        self.contents.close(row)

    def accept(self, rows: I32, positions: I32, tokens: I32) -> None:
        """tokens[i] stands at positions[i] of rows[i]: content for blocks to come."""
        self.contents.accept(rows, positions, tokens)

    def admit_group(self, members: list[tuple[int, int]], num_shared: int, reserve: int) -> Grant:
        """`admit` for rows whose first `num_shared` positions are equal: full blocks of those are held once.

        The first row computes the shared part. All or nothing.
        """
        first, num_tokens = members[0]
        if any(self.held_by(row) for row, _ in members):
            raise ValueError("a row of the group already holds frames")
        hits = self._publication.find(first, num_tokens - 1)
        shared = num_shared // self.block_size
        needed = [self.blocks_for(num_tokens) - len(hits)]
        needed += [self.blocks_for(tokens) - shared for _, tokens in members[1:]]
        pinned = self.pool.num_cached_of(hits) if len(hits) else 0
        total = sum(needed)
        if total + len(hits) > self.total_blocks:
            return Grant.NEVER
        if total + pinned + reserve > self.pool.available:
            return Grant.LATER
        if len(hits):
            self.pool.share(hits)
        fresh = self._take(total)
        assert fresh is not None
        own = np.concatenate([hits, fresh[: needed[0]]]) if len(hits) else fresh[: needed[0]]
        self._set(first, own)
        self._publication.start(first, len(hits), num_tokens)
        at = needed[0]
        for (row, tokens), count in zip(members[1:], needed[1:], strict=True):
            if shared:
                self.pool.share(own[:shared])
            self._set(row, np.concatenate([own[:shared], fresh[at : at + count]]))
            self._publication.start(row, shared, tokens)
            at += count
        self.last_hits = len(hits)
        return Grant.OK

    def fork(self, parent: int, child: int, num_tokens: int) -> None:
        """`child`, which is empty, holds the frames of `parent`, whose first `num_tokens` positions are known."""
        blocks = self.tables.of(parent).copy()
        self.pool.share(blocks)
        self._set(child, blocks)
        self._publication.fork(parent, child, num_tokens)

    def move(self, rows: list[int], parents: list[int]) -> None:
        """Each of `rows` gives its frames back and holds those that its parent held, all at once. O(blocks)."""
        held = [self.tables.of(parent).copy() for parent in parents]
        for blocks in held:
            self.pool.share(blocks)
        for row, blocks in zip(rows, held, strict=True):
            self.pool.give(self.tables.clear(row))
            self._set(row, blocks)
        self._publication.move(rows, parents)

    def release(self, row: int) -> int:
        """Takes all frames from `row`; how many it held."""
        blocks = self.tables.clear(row)
        self.pool.give(blocks)
        self._publication.silence(row)
        return len(blocks)

    # -- publication -------------------------------------------------------------------------------------------

    def publish(self, row: int, num_tokens: int) -> None:
        """Makes the full blocks within `num_tokens` known and computed positions of `row` findable."""
        self._publication.publish(row, num_tokens)

    def computed(self, positions: I32) -> None:
        """The first positions[row] positions of each row are known and computed: their full blocks can be found."""
        self._publication.computed(positions)

    def silence(self, row: int) -> None:
        """`row` publishes nothing from now on: its computed content is not to be trusted."""
        self._publication.silence(row)

    # -- swap --------------------------------------------------------------------------------------------------

    def swap_out(self, group: int, members: list[tuple[int, int]]) -> Move | None:
        """Takes all frames from the rows of `members` (row, valid positions) and moves what is valid to the host.

        None, and no change, where the host pool has too few blocks. The frames come back with `moved`.
        """
        columns = [self.tables.of(row)[: self.blocks_for(valid)] for row, valid in members]
        stored = self.host.store([column.copy() for column in columns])
        if stored is None:
            return None
        frames, layout = stored
        self._hold(frames)
        self._layouts[group] = layout
        for row, _ in members:
            self.release(row)
        return Move(frames, layout.blocks)

    def swap_in(
        self, group: int, members: list[tuple[int, int]], valid: int, reserve: int
    ) -> Move | Grant:
        """Gives the rows of `members` (row, known positions) frames again, and moves in what the index does not have.

        `valid` positions of the first row lie on the host.
        """
        layout = self._layouts[group]
        first = members[0][0]
        hits = self._publication.find(first, valid)
        known = dict(zip(layout.columns[0].tolist(), hits.tolist(), strict=False))
        missing = [host for host in layout.blocks.tolist() if host not in known]
        tails = [
            self.blocks_for(tokens) - len(column)
            for (_, tokens), column in zip(members, layout.columns, strict=True)
        ]
        total = len(missing) + sum(tails)
        pinned = self.pool.num_cached_of(hits) if len(hits) else 0
        if total + pinned + reserve > self.pool.available:
            return Grant.LATER
        if len(hits):
            self.pool.share(hits)
        fresh = self._take(total)
        assert fresh is not None
        moved = fresh[: len(missing)].astype(np.int32)
        known.update(zip(missing, moved.tolist(), strict=True))
        at = len(missing)
        seen: set[int] = set()
        for (row, tokens), column, tail in zip(members, layout.columns, tails, strict=True):
            frames = np.array([known[host] for host in column.tolist()], np.int32)
            again = np.array([f for f in frames.tolist() if f in seen], np.int32)
            self.pool.share(again)
            seen.update(frames.tolist())
            self._set(row, np.concatenate([frames, fresh[at : at + tail]]))
            at += tail
            leading = np.flatnonzero(~self.pool.indexed[frames])
            self._publication.start(row, int(leading[0]) if len(leading) else len(frames), tokens)
        self._hold(moved)
        self.last_hits = len(hits)
        return Move(moved, np.array(missing, np.int32))

    def moved(self, frames: I32) -> None:
        """A transfer that touched `frames` is over: its references go."""
        self.pool.moves[frames] -= 1
        self.pool.give(frames)

    def forget(self, group: int) -> None:
        """What `group` has on the host is not needed any more."""
        self.host.drop(self._layouts.pop(group))

    # -- looking -----------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raises `InvariantError` unless references are those of tables and transfers. O(frames + entries)."""
        super().check_invariants()
        self.host.check_invariants(list(self._layouts.values()))

    def report(
        self, computed: I32, num_running: int, num_waiting: int, num_swapped: int
    ) -> MemoryReport:
        """The pool at this moment; `computed[row]` positions of each row hold a token state. O(entries)."""
        queue = (num_running, num_waiting, num_swapped)
        return memory_report(self.pool, self.tables, self.host, self.block_size, computed, *queue)
