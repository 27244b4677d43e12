"""BlockManager: paged KV memory. Tables over a pool of frames, an index of what they hold, a host pool to swap to.

Knows rows, lengths and content; knows no requests, no queues, and not who should give way when frames run out. Blocks can be
found as soon as `computed` says that they hold their states. Those of prompts enter the index then, generated ones when a
lookup comes to where they would be, or when their row leaves.

Invariants, beside those of its parts: a frame's references are those of tables, transfers and copies; no frame is in
two tables unless shared through the index or a fork; a frame that is written is in one table only.
"""

import numpy as np

from engine.core.allocator import Grant, Move
from engine.core.arrays import I32, I64, Index, filled
from engine.core.blocks import BlockPool
from engine.core.config import MemoryConfig
from engine.core.content import Content, RowContents
from engine.core.errors import InvariantError
from engine.core.frames import FrameMap, frame_map
from engine.core.frontier import Frontier, Place
from engine.core.plan import MemoryReport
from engine.core.prefix import PrefixIndex
from engine.core.swap import Layout, SwapSpace
from engine.core.tables import BlockTables

_NOTHING: I32 = np.zeros(0, np.int32)
_SILENT = -1
"""In `_published`: the row publishes no (more) blocks."""


class BlockManager:
    """The paged `Allocator` (Kwon et al., SOSP 2023, section 4)."""

    def __init__(self, config: MemoryConfig) -> None:
        self.block_size = config.block_size
        self._size: I64 = np.array(config.block_size)
        self.total_blocks = config.num_blocks
        self.pool = BlockPool(config.num_blocks)
        self.tables = BlockTables()
        self.index = PrefixIndex(config.num_blocks, self.pool.indexed)
        self.contents = RowContents(config.block_size)
        self._prefix_cache = config.prefix_cache
        self._published: I32 = np.full(16, _SILENT, np.int32)
        self._computed: I32 = np.zeros(16, np.int32)
        """Positions whose states may be found."""
        self._fresh: I32 = np.zeros(16, np.int32)
        """Of rows that have published nothing of what they knew when they got their frames: how much that is. Others: 0."""
        self._frontier = Frontier()
        self.evicted: list[Index] = []
        """Frames whose content left the index, until `take_evicted`."""
        self.num_evicted = 0
        self.num_copied = 0
        self.last_hits = 0
        """Cached blocks that the last granted admission shared."""
        self.host = SwapSpace(config.host_blocks)
        self._layouts: dict[int, Layout] = {}
        self._deltas: list[tuple[I32, I32, I32]] = []
        self._copies: list[tuple[int, int, int, int]] = []
        """(row, column, source, copy) until `take_copies`."""

    @property
    def free_blocks(self) -> int:
        """Frames that can be handed out now: free, or cached and evictable."""
        return self.pool.available

    @property
    def cached_blocks(self) -> int:
        """Frames without an owner whose content is still findable."""
        return self.pool.cached

    @property
    def shares_content(self) -> bool:
        """Whether any row has content, so that it may publish."""
        return bool(self.contents.salts)

    @property
    def keeps_tokens(self) -> bool:
        """Whether any row's content grows with what `accept` is told."""
        return self.contents.keeps_tokens

    def blocks_for(self, num_tokens: int) -> int:
        """Frames that `num_tokens` positions take."""
        return -(-num_tokens // self.block_size)

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
        hits = self._find(first, num_tokens - 1)
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
        self._start(first, len(hits), num_tokens)
        at = needed[0]
        for (row, tokens), count in zip(members[1:], needed[1:], strict=True):
            if shared:
                self.pool.share(own[:shared])
            self._set(row, np.concatenate([own[:shared], fresh[at : at + count]]))
            self._start(row, shared, tokens)
            at += count
        self.last_hits = len(hits)
        return Grant.OK

    def _find(self, row: int, num_tokens: int) -> I32:
        """Frames that hold the leading full blocks within the first `num_tokens` known positions of `row`."""
        contents, size = self.contents, self.block_size
        count = contents.num_keys(row, num_tokens)
        if not count:
            return _NOTHING
        salt, keys = contents.salts[row], contents.keys(row, 0, count)
        while True:
            hits = self.index.lookup(salt, keys)
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

    def _start(self, row: int, published: int, known: int) -> None:
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

    def _stand(self, row: int, published: int) -> None:
        """`row` has published, or shares, `published` blocks."""
        self._published[row] = published
        place: Place = (self.contents.salts[row], self.contents.width(row))
        if published:
            place = int(self.tables.blocks[row, published - 1])
        self._frontier.stand(row, place)

    def computed(self, positions: I32) -> None:
        """The first positions[row] positions of each row are known and computed: their full blocks can be found."""
        count = min(len(positions), len(self._computed))
        done, published = positions[:count], self._published[:count]
        self._computed[:count] = done
        due = (self._fresh[:count] > 0) & (done // self.block_size > published)
        for row in due.nonzero()[0].tolist():
            if done[row] >= self._fresh[row]:
                self._fresh[row] = 0
            self.publish(row, int(done[row]))

    def _take(self, count: int) -> Index | None:
        taken = self.pool.take(count)
        if taken is None:
            return None
        blocks, evicted = taken
        if len(evicted):
            self.index.drop(evicted)
            self.evicted.append(evicted)
            self.num_evicted += len(evicted)
        return blocks

    def _set(self, row: int, blocks: I32 | Index) -> None:
        """`row`, which is empty, holds `blocks`."""
        self.tables.extend(row, blocks)
        size = len(blocks)
        columns = np.arange(size, dtype=np.int32)
        self._deltas.append((filled(size, row), columns, blocks.astype(np.int32)))

    def fork(self, parent: int, child: int, num_tokens: int) -> None:
        """`child`, which is empty, holds the frames of `parent`, whose first `num_tokens` positions are known."""
        blocks = self.tables.of(parent).copy()
        self.pool.share(blocks)
        self._set(child, blocks)
        if parent in self.contents.salts:
            self.contents.fork(parent, child, num_tokens)
        self._start(child, 0, num_tokens)
        self._follow(child, int(self._published[parent]))

    def _follow(self, row: int, published: int) -> None:
        """`row` publishes on from where the row whose frames it shares has come to."""
        if published == _SILENT:
            self.silence(row)
        else:
            self._stand(row, published)

    def move(self, rows: list[int], parents: list[int]) -> None:
        """Each of `rows` gives its frames back and holds those that its parent held, all at once. O(blocks)."""
        held = [self.tables.of(parent).copy() for parent in parents]
        published = self._published[parents].tolist()
        for blocks in held:
            self.pool.share(blocks)
        for row, blocks in zip(rows, held, strict=True):
            self.pool.give(self.tables.clear(row))
            self._set(row, blocks)
        self.contents.move(rows, parents)
        for row, count in zip(rows, published, strict=True):
            self._computed[row] = 0
            self._follow(row, count)

    # -- growth ------------------------------------------------------------------------------------------------

    def short(self, rows: Index, lengths: I32) -> Index:
        """Indices into `rows` of those whose table cannot hold `lengths` positions."""
        lacking = self.tables.counts[rows] * self._size < lengths
        return lacking.nonzero()[0]

    def grow(self, rows: Index) -> I32 | None:
        """Gives each of `rows` one more frame; the frames, or None where there are too few."""
        blocks = self._take(len(rows))
        if blocks is None:
            return None
        columns = self.tables.append_each(rows, blocks)
        frames = blocks.astype(np.int32)
        self._deltas.append((rows.astype(np.int32), columns.astype(np.int32), frames))
        return frames

    def room_of(self, rows: Index) -> I64:
        """Positions that each of `rows` has frames for."""
        return self.tables.counts[rows] * self._size

    def grow_each(self, rows: Index, nth: Index) -> tuple[I32, int]:
        """Gives a frame for each entry of `rows`, in order: the row's `nth[i]`-th new one, ascending.

        (frames, how many of the first were free rather than evicted for this).
        """
        num_free = self.pool.free
        blocks = self._take(len(rows))
        if blocks is None:
            raise ValueError("grow_each must be asked for no more than is free")
        columns = self.tables.append_many(rows, nth, blocks)
        frames = blocks.astype(np.int32)
        self._deltas.append((rows.astype(np.int32), columns.astype(np.int32), frames))
        return frames, min(num_free, len(rows))

    def shares_tail(self, row: int, position: int) -> bool:
        """Whether writing `position` of `row` would write a frame that another sequence holds."""
        column = position // self.block_size
        if column >= self.tables.counts[row]:
            return False
        block = self.tables.blocks[row, column]
        return bool(self.pool.refs[block] - self.pool.moves[block] > 1)

    def make_writable(self, row: int, position: int) -> tuple[int, int] | None:
        """Copy-on-write: gives `row` a frame of its own for `position`; (source, copy), or None where there is none.

        The source stays referenced until `copied` says that the copy has run.
        """
        taken = self._take(1)
        if taken is None:
            return None
        column = position // self.block_size
        source, copy = int(self.tables.blocks[row, column]), int(taken[0])
        self.tables.blocks[row, column] = copy
        self.pool.moves[source] += 1
        self._deltas.append((filled(1, row), filled(1, column), taken.astype(np.int32)))
        self._copies.append((row, column, source, copy))
        self.num_copied += 1
        return source, copy

    def uncopy(self, rows: list[int]) -> list[tuple[int, int, int]]:
        """Takes back the copies of `rows` since the last `take_copies`: (row, source, copy) of each."""
        undone = [entry for entry in self._copies if entry[0] in rows]
        for row, column, source, copy in undone:
            self._copies.remove((row, column, source, copy))
            self.num_copied -= 1
            # The copy's reference to the source becomes the table's again.
            self.pool.moves[source] -= 1
            self.tables.blocks[row, column] = source
            self.pool.give(np.array([copy]))
            self._deltas.append((filled(1, row), filled(1, column), filled(1, source)))
        return [(row, source, copy) for row, _, source, copy in undone]

    def copied(self, sources: list[int]) -> None:
        """The copies from `sources` have run: their references go."""
        for source in sources:
            self.pool.moves[source] -= 1
            self.pool.give(np.array([source]))

    # -- release -----------------------------------------------------------------------------------------------

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
        frames = self.tables.of(row)
        if done and not self.pool.indexed[frames[done - 1]]:
            return  # A sibling computes the parent and has not published it.
        added = self.index.publish(
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

    def release(self, row: int) -> int:
        """Takes all frames from `row`; how many it held."""
        blocks = self.tables.clear(row)
        self.pool.give(blocks)
        self.silence(row)
        return len(blocks)

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
        hits = self._find(first, valid)
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
            self._start(row, int(leading[0]) if len(leading) else len(frames), tokens)
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

    def _hold(self, frames: I32) -> None:
        self.pool.share(frames)
        self.pool.moves[frames] += 1

    # -- looking -----------------------------------------------------------------------------------------------

    def blocks_of(self, row: int) -> I32:
        """The frames of `row` in logical order: a view."""
        return self.tables.of(row)

    def held_by(self, row: int) -> int:
        """How many frames `row` holds."""
        return int(self.tables.counts[row]) if row < len(self.tables.counts) else 0

    def take_deltas(self) -> tuple[I32, I32, I32]:
        """(rows, columns, frames) of the table entries set since the last take, in order."""
        deltas, self._deltas = self._deltas, []
        if not deltas:
            return _NOTHING, _NOTHING, _NOTHING
        if len(deltas) == 1:
            return deltas[0]
        rows, columns, blocks = zip(*deltas, strict=True)
        return np.concatenate(rows), np.concatenate(columns), np.concatenate(blocks)

    def take_evicted(self) -> tuple[int, ...]:
        """Frames whose content left the index since the last take, in order."""
        evicted, self.evicted = self.evicted, []
        return tuple(np.concatenate(evicted).tolist()) if evicted else ()

    def take_copies(self) -> list[tuple[int, int]]:
        """(source, copy) of the copy-on-writes since the last take, to run before the step that follows."""
        copies, self._copies = self._copies, []
        return [(source, copy) for _, _, source, copy in copies]

    def check_invariants(self) -> None:
        """Raises `InvariantError` unless references are those of tables and transfers. O(frames + entries)."""
        self.pool.check_invariants()
        self.tables.check_invariants()
        self.index.check_invariants()
        listed = self.tables.blocks[self.tables.blocks >= 0]
        references = np.bincount(listed, minlength=self.total_blocks)
        if (references + self.pool.moves != self.pool.refs).any():
            raise InvariantError(
                "reference counts differ from the references of tables and transfers"
            )

        self.host.check_invariants(list(self._layouts.values()))

    def frames(self, requests: I64, indexes: I32) -> FrameMap:
        """What lies in each frame; `requests[row]` and `indexes[row]` name the sequence of each row. O(entries)."""
        return frame_map(self.pool, self.tables, requests, indexes, self.block_size)

    def report(
        self, computed: I32, num_running: int, num_waiting: int, num_swapped: int
    ) -> MemoryReport:
        """The pool at this moment; `computed[row]` positions of each row hold a token state. O(entries)."""
        pool, size = self.pool, self.block_size
        counts = self.tables.counts[: len(computed)]
        rows, columns = np.nonzero(np.arange(counts.max(initial=0)) < counts[:, None])
        filled = np.minimum(np.maximum(computed[rows] - columns * size, 0), size)
        states = np.zeros(pool.total, np.int32)
        np.maximum.at(states, self.tables.blocks[rows, columns], filled)
        moving = int(np.count_nonzero((pool.moves == pool.refs) & (pool.refs > 0)))
        held = pool.total - pool.free - pool.cached - moving
        return MemoryReport(
            block_size=size,
            total_blocks=pool.total,
            free_blocks=pool.free,
            cached_blocks=pool.cached,
            held_blocks=held,
            moving_blocks=moving,
            used_tokens=int(states.sum()),
            allocated_tokens=held * size,
            logical_blocks=len(rows),
            host_blocks=self.host.total,
            host_used_blocks=self.host.total - self.host.free,
            num_running=num_running,
            num_waiting=num_waiting,
            num_swapped=num_swapped,
        )
