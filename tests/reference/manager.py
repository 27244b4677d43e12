"""The block manager as lists and dictionaries: who holds which frame, what can be found, what lies on the host.

It gives the same frames in the same order as the real one, so that every table can be compared.
"""

from collections.abc import Sequence

from tests.reference.frames import Frames
from tests.reference.prefixes import Key, Prefixes

Member = tuple[int, int]


class Row:
    """A row: its frames, what its positions hold, and how many of its blocks it has made findable (None: no more)."""

    def __init__(self, salt: str, keys: "Content | None") -> None:
        self.salt = salt
        self.content = keys
        self.frames: list[int] = []
        self.published: int | None = None


class Content:
    """Tokens, or ids of trace blocks that cover the prompt; `tokens` grows, ids do not."""

    def __init__(self, tokens: list[int], ids: Sequence[int] | None, trace_block: int) -> None:
        self.tokens = tokens
        self.num_prompt = len(tokens)
        self.ids = ids
        self.trace_block = trace_block

    def keys(self, num_tokens: int, size: int) -> list[Key]:
        """Of the full blocks within `num_tokens` positions that have a key."""
        if self.ids is None:
            full = num_tokens // size
            return [tuple(self.tokens[i * size : (i + 1) * size]) for i in range(full)]
        covered = min(num_tokens, self.num_prompt, len(self.ids) * self.trace_block)
        ends = range(size, covered + 1, size)
        return [(self.ids[(end - 1) // self.trace_block],) for end in ends]


class Manager:
    def __init__(
        self, num_blocks: int, block_size: int, host_blocks: int = 0, *, prefix_cache: bool = True
    ) -> None:
        self.size = block_size
        self.frames = Frames(num_blocks)
        self.moves = [0] * num_blocks
        self.prefixes = Prefixes()
        self.prefix_cache = prefix_cache
        self.rows: dict[int, Row] = {}
        self.host_free = list(range(host_blocks - 1, -1, -1))
        self.layouts: dict[int, list[list[int]]] = {}
        self.last_hits = 0
        self.evicted: list[int] = []
        """Frames whose content left the index, for whoever wants to know."""

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.size)

    def open(self, row: int, content: Content | None, salt: str) -> None:
        self.rows[row] = Row(salt, content if self.prefix_cache else None)

    def close(self, row: int) -> None:
        assert not self.rows[row].frames
        del self.rows[row]

    def admit_group(self, members: list[Member], num_shared: int, reserve: int) -> str:
        first, known = members[0]
        hits = self.hits_of(first, known - 1)
        shared = num_shared // self.size
        needed = [self.blocks_for(known) - len(hits)]
        needed += [self.blocks_for(tokens) - shared for _, tokens in members[1:]]
        if sum(needed) + len(hits) > self.frames.total:
            return "never"
        # A hit that nobody holds is not free once it is pinned.
        pinned = sum(frame in self.frames.cached for frame in hits)
        if sum(needed) + pinned + reserve > self.frames.available:
            return "later"
        self.frames.share(hits)
        fresh = self.take(sum(needed))
        for (row, _), count in zip(members, needed, strict=True):
            own, fresh = fresh[:count], fresh[count:]
            sequence = self.rows[row]
            if row == first:
                sequence.frames = hits + own
                sequence.published = len(hits)
            else:
                common = self.rows[first].frames[:shared]
                self.frames.share(common)
                sequence.frames = common + own
                sequence.published = shared
            if sequence.content is None:
                sequence.published = None
        self.last_hits = len(hits)
        return "ok"

    def hits_of(self, row: int, num_tokens: int) -> list[int]:
        sequence = self.rows[row]
        if sequence.content is None:
            return []
        keys = sequence.content.keys(num_tokens, self.size)
        width = len(keys[0]) if keys else 0
        return self.prefixes.lookup(width, sequence.salt, keys)

    def take(self, count: int) -> list[int]:
        taken = self.frames.take(count)
        assert taken is not None
        for frame in taken[1]:
            self.prefixes.drop(frame)
        self.evicted.extend(taken[1])
        return taken[0]

    def fork(self, parent: int, child: int) -> None:
        above = self.rows[parent]
        content = above.content
        if content is not None:
            tokens = list(content.tokens)
            content = Content(tokens, content.ids, content.trace_block)
            content.num_prompt = above.content.num_prompt
        self.rows[child] = Row(above.salt, content)
        self.rows[child].frames = list(above.frames)
        self.rows[child].published = above.published
        self.frames.share(above.frames)

    def accept(self, row: int, token: int) -> None:
        if self.rows[row].content is not None:
            self.rows[row].content.tokens.append(token)

    def grow(self, rows: Sequence[int]) -> list[int] | None:
        if len(rows) > self.frames.available:
            return None
        frames = self.take(len(rows))
        for row, frame in zip(rows, frames, strict=True):
            self.rows[row].frames.append(frame)
        return frames

    def shares_tail(self, row: int, position: int) -> bool:
        frames = self.rows[row].frames
        holders = [r for r in self.rows.values() if frames[position // self.size] in r.frames]
        return len(holders) > 1

    def make_writable(self, row: int, position: int) -> tuple[int, int] | None:
        if not self.frames.available:
            return None
        column = position // self.size
        source, (copy,) = self.rows[row].frames[column], self.take(1)
        self.rows[row].frames[column] = copy
        self.moves[source] += 1
        return source, copy

    def end_move(self, frames: Sequence[int]) -> None:
        for frame in frames:
            self.moves[frame] -= 1
        self.frames.give(frames)

    def publish(self, row: int, num_tokens: int) -> None:
        sequence = self.rows[row]
        done = sequence.published
        if done is None:
            return
        keys = sequence.content.keys(num_tokens, self.size)[done:]
        if not keys:
            return
        parent = sequence.frames[done - 1] if done else -1
        if done and not self.frames.indexed[parent]:
            return
        frames = sequence.frames[done : done + len(keys)]
        added = self.prefixes.publish(len(keys[0]), sequence.salt, parent, keys, frames)
        for frame in frames[:added]:
            self.frames.indexed[frame] = True
        sequence.published = done + added if added else None

    def release(self, row: int) -> None:
        self.frames.give(self.rows[row].frames)
        self.rows[row].frames = []
        self.rows[row].published = None

    def swap_out(self, group: int, members: list[Member]) -> tuple[list[int], list[int]] | None:
        columns = [self.rows[row].frames[: self.blocks_for(valid)] for row, valid in members]
        distinct = list(dict.fromkeys(frame for column in columns for frame in column))
        if len(distinct) > len(self.host_free):
            return None
        host_of = {frame: self.host_free.pop() for frame in distinct}
        self.layouts[group] = [[host_of[frame] for frame in column] for column in columns]
        self.hold(distinct)
        for row, _ in members:
            self.release(row)
        return distinct, list(host_of.values())

    def hold(self, frames: Sequence[int]) -> None:
        self.frames.share(frames)
        for frame in frames:
            self.moves[frame] += 1

    def swap_in(
        self, group: int, members: list[Member], valid: int, reserve: int
    ) -> tuple[list[int], list[int]] | None:
        columns = self.layouts[group]
        hits = self.hits_of(members[0][0], valid)
        frame_of = dict(zip(columns[0], hits, strict=False))
        distinct = list(dict.fromkeys(host for column in columns for host in column))
        missing = [host for host in distinct if host not in frame_of]
        tails = [
            self.blocks_for(known) - len(c) for (_, known), c in zip(members, columns, strict=True)
        ]
        pinned = sum(frame in self.frames.cached for frame in hits)
        if len(missing) + sum(tails) + pinned + reserve > self.frames.available:
            return None
        self.frames.share(hits)
        fresh = self.take(len(missing) + sum(tails))
        moved, fresh = fresh[: len(missing)], fresh[len(missing) :]
        frame_of.update(zip(missing, moved, strict=True))
        given = set(hits[: len(columns[0])]) | set(moved)
        for (row, _), column, tail in zip(members, columns, tails, strict=True):
            own, fresh = fresh[:tail], fresh[tail:]
            restored = [frame_of[host] for host in column]
            # The first to name a frame has the reference that it came with.
            self.frames.share([frame for frame in restored if frame not in given])
            given -= set(restored)
            sequence = self.rows[row]
            sequence.frames = restored + own
            if sequence.content is not None:
                unknown = [i for i, f in enumerate(restored) if not self.frames.indexed[f]]
                sequence.published = unknown[0] if unknown else len(restored)
        self.hold(moved)
        self.last_hits = len(hits)
        return moved, missing

    def forget(self, group: int) -> None:
        columns = self.layouts.pop(group)
        distinct = list(dict.fromkeys(host for column in columns for host in column))
        self.host_free.extend(reversed(distinct))
