"""The block manager beside the model of `tests/reference/manager.py`, which must hold the same frames in the same order, and a KV
in which every slot remembers the prefix that was written to it: whatever a sequence reads must be what it wrote or shares.
"""

import pickle

import numpy as np

from engine.core.allocator import Move
from engine.core.config import MemoryConfig
from engine.core.content import TokenContent, TraceContent
from engine.core.memory import BlockManager
from tests.engine.core.worlds import Choose, World
from tests.reference.manager import Content, Manager

GARBAGE = -2


class Sequence:
    """A row, the tokens it knows, and how many positions hold their state."""

    def __init__(self, row: int, tokens: list[int]) -> None:
        self.row = row
        self.tokens = tokens
        self.computed = 0


class Group:
    """Sequences of one request. `where`: run, off, out (moving), host, in (moving)."""

    def __init__(self, number: int, root: object, first: Sequence, siblings: int) -> None:
        self.number = number
        self.root = root
        self.members = [first]
        self.siblings = siblings
        """Still to be forked."""
        self.where = "run"
        self.over = False
        self.shared = 0
        self.move: Move | None = None


class MemoryPair(World):
    """The manager, its model, the KV, and the sequences that use them; who does what to them is for rules to say."""

    def __init__(self, choose: Choose) -> None:
        self.size = choose.one_of([1, 2, 8, 16])
        self.total = choose.between(1, 8)
        hosts = choose.one_of([0, 2, 8])
        cache = choose.between(0, 4) > 0
        self.trace_block = choose.one_of([0, 0, 3, 8, 32])
        self.whole_ids = bool(choose.between(0, 1))
        config = MemoryConfig(
            num_blocks=self.total, block_size=self.size, prefix_cache=cache, host_blocks=hosts
        )
        self.memory = BlockManager(config)
        self.model = Manager(self.total, self.size, hosts, prefix_cache=cache)
        self.slots = [[GARBAGE] * self.size for _ in range(self.total)]
        self.host = [[GARBAGE] * self.size for _ in range(hosts)]
        self.stamps: dict[tuple[object, int], int] = {}
        self.ids: dict[tuple[int, ...], int] = {}
        self.groups: list[Group] = []
        self.sources: list[int] = []
        self.rows = list(range(17, -1, -1))
        self.next_group = 0
        self.ticks = 0

    # -- what the rules need -----------------------------------------------------------------------------------

    def in_state(self, *states: str) -> list[Group]:
        return [g for g in self.groups if g.where in states and not g.over]

    def content_of(self, tokens: list[int]) -> tuple[TokenContent | TraceContent, Content]:
        block = self.trace_block
        if not block:
            return TokenContent(np.array(tokens, np.int32)), Content(list(tokens), None, 0)
        ends = range(block, len(tokens) + block * self.whole_ids, block)
        names = [tuple(tokens[:end]) for end in ends]
        ids = [self.ids.setdefault(name, len(self.ids)) for name in names]
        return (
            TraceContent(np.array(ids, np.int64), block),
            Content(list(tokens), ids, block),
        )

    def stamps_of(self, root: object, tokens: list[int]) -> list[int]:
        stamp: object = ("root", root)
        result = []
        for token in tokens:
            stamp = self.stamps.setdefault((stamp, token), len(self.stamps))
            result.append(stamp)
        return result

    def verify(self, group: Group, sequence: Sequence) -> None:
        """Every state that the sequence relies on is its own, or an equal one."""
        frames = self.memory.blocks_of(sequence.row).tolist()
        first, relied = group.members[0], sequence.computed
        if first.computed < group.shared:
            relied = min(relied, first.computed)  # It waits for what the first computes.
        expected = self.stamps_of(group.root, sequence.tokens[:relied])
        found = [self.slots[frames[p // self.size]][p % self.size] for p in range(len(expected))]
        assert found == expected, "a foreign read"

    def write(self, group: Group, sequence: Sequence, count: int) -> None:
        """Computes `count` more positions, which read all before them."""
        self.verify(group, sequence)
        frames = self.memory.blocks_of(sequence.row).tolist()
        end = sequence.computed + count
        expected = self.stamps_of(group.root, sequence.tokens[:end])
        for position in range(sequence.computed, end):
            frame = frames[position // self.size]
            pool = self.memory.pool
            if position >= group.shared:
                holders = sum(frame in other.frames for other in self.model.rows.values())
                assert holders == 1, "a shared frame is written"
            assert not pool.indexed[frame], "a frame that can be found is written"
            self.slots[frame][position % self.size] = expected[position]
        sequence.computed = end

    def refused(self, before: bytes) -> None:
        assert self.state() == before, "a refused call left a trace"

    def state(self) -> bytes:
        return pickle.dumps(self.memory)

    def look_up(self, group_row: int, num_tokens: int) -> None:
        """So that blocks which a lookup brings into the index are there before a call that may be refused."""
        self.memory._publication.find(group_row, num_tokens)
        self.model.hits_of(group_row, num_tokens)

    # -- what must hold ----------------------------------------------------------------------------------------

    def check(self) -> None:
        memory, model, pool = self.memory, self.model, self.memory.pool
        for row, sequence in model.rows.items():
            assert memory.blocks_of(row).tolist() == sequence.frames
        assert pool.refs.tolist() == model.frames.refs
        assert pool.moves.tolist() == model.moves
        assert pool.cached_in_order() == model.frames.cached
        assert pool.indexed.tolist() == model.frames.indexed
        assert memory.free_blocks == model.frames.available
        assert memory.host.free == len(model.host_free)
        memory.take_deltas()
        memory.take_evicted()
        self.ticks += 1
        if self.ticks % 4 == 0:
            self.check_all()

    def check_all(self) -> None:
        memory, model = self.memory, self.model
        memory.check_invariants()
        for chain, frame in model.prefixes.frame_at.items():
            width, salt, *keys = chain
            kind = np.int64 if self.trace_block else np.int32
            found = memory.index.lookup(salt, np.array(keys, kind).reshape(-1, width))
            assert found.tolist()[-1] == frame
        computed = np.zeros(18, np.int32)
        used = set()
        for group in self.groups:
            for sequence in group.members:
                frames = model.rows[sequence.row].frames
                computed[sequence.row] = sequence.computed if frames else 0
                for position in range(int(computed[sequence.row])):
                    used.add((frames[position // self.size], position % self.size))
        report = memory.report(computed, 0, 0, 0)
        moving = sum(m == r > 0 for m, r in zip(model.moves, model.frames.refs, strict=True))
        held = sum(r > 0 for r in model.frames.refs) - moving
        assert (report.free_blocks, report.cached_blocks) == (
            len(model.frames.free),
            len(model.frames.cached),
        )
        assert (report.held_blocks, report.moving_blocks) == (held, moving)
        assert report.used_tokens == len(used)
        assert report.allocated_tokens == held * self.size
        assert report.logical_blocks == sum(len(s.frames) for s in model.rows.values())
