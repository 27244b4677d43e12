"""Rules over the block manager: sequences that compute, share, grow, fork, copy, publish, leave, swap and come back.

Beside it runs the model of `tests/reference/manager.py`, which must hold the same frames in the same order, and a KV in
which every slot remembers the prefix that was written to it: whatever a sequence reads must be what it wrote or shares.
"""

import pickle

import numpy as np

from engine.core.allocator import Grant, Move
from engine.core.config import MemoryConfig
from engine.core.content import TokenContent, TraceContent
from engine.core.memory import BlockManager
from tests.engine.core.worlds import Choose, World, rule
from tests.reference.manager import Content, Manager

PROMPTS = [[0] * 40, [1, 0] * 20, [0] * 9 + [1] * 31, [1, 1, 0] * 13]
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


class MemoryWorld(World):
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

    # -- arriving and computing --------------------------------------------------------------------------------

    @rule(weight=4, when=lambda self: len(self.groups) < 6)
    def arrive(self, choose: Choose) -> None:
        tokens = choose.one_of(PROMPTS)[: choose.between(1, 39)]
        salt = choose.one_of(["", "", "b"])
        private = choose.between(0, 9) == 0
        real, plain = (None, None) if private else self.content_of(tokens)
        row = self.rows[-1]
        self.memory.open(row, real, salt, len(tokens))
        self.model.open(row, plain, salt)
        reserve = choose.one_of([0, 0, 1])
        self.look_up(row, len(tokens) - 1)
        before = self.state()
        grant = self.memory.admit_group([(row, len(tokens))], 0, reserve)
        assert grant.value == self.model.admit_group([(row, len(tokens))], 0, reserve)
        if grant is not Grant.OK:
            self.refused(before)
            self.memory.close(row)
            self.model.close(row)
            return
        self.rows.pop()
        root = ("private", self.next_group) if private else salt
        siblings = choose.one_of([0, 0, 1, 2])
        group = Group(self.next_group, root, Sequence(row, list(tokens)), siblings)
        self.next_group += 1
        self.admitted(group, 0)

    def admitted(self, group: Group, shared: int) -> None:
        """Hits hold what they should, and at least one position is left to compute."""
        hits = self.memory.last_hits
        assert hits == self.model.last_hits
        group.where = "run"
        group.shared = shared // self.size * self.size
        if group not in self.groups:
            self.groups.append(group)
        for at, sequence in enumerate(group.members):
            sequence.computed = (hits if at == 0 else shared // self.size) * self.size
            assert sequence.computed < len(sequence.tokens)
        self.verify(group, group.members[0])

    @rule(weight=10, when=lambda self: self.in_state("run"))
    def step(self, choose: Choose) -> None:
        """One sequence computes what it knows, or one more position, and then learns a token."""
        group = choose.one_of(self.in_state("run"))
        sequence = choose.one_of(group.members)
        first = group.members[0]
        if sequence is not first and first.computed < sequence.computed:
            sequence = first
        left = len(sequence.tokens) - sequence.computed
        if left > 1 or len(sequence.tokens) <= self.capacity(sequence):
            if self.memory.shares_tail(sequence.row, sequence.computed):
                assert self.model.shares_tail(sequence.row, sequence.computed)
                if not (left == 1 and self.copy(sequence)):
                    return
            count = choose.between(1, left)
            self.write(group, sequence, count)
        elif self.grow([sequence]):
            self.write(group, sequence, 1)
        if sequence.computed == len(sequence.tokens):
            self.fork(group)
            if len(sequence.tokens) < 90:
                self.learn(sequence, choose.between(0, 1))

    def capacity(self, sequence: Sequence) -> int:
        return int(self.memory.room_of(np.array([sequence.row]))[0])

    def learn(self, sequence: Sequence, token: int) -> None:
        position = np.array([len(sequence.tokens)], np.int32)
        self.memory.accept(np.array([sequence.row], np.int32), position, np.array([token]))
        self.model.accept(sequence.row, token)
        sequence.tokens.append(token)

    def fork(self, group: Group) -> None:
        first = group.members[0]
        for _ in range(group.siblings):
            child = Sequence(self.rows.pop(), list(first.tokens))
            child.computed = first.computed
            self.memory.fork(first.row, child.row, len(first.tokens))
            self.model.fork(first.row, child.row)
            group.members.append(child)
        for child in group.members[1:] if group.siblings else []:
            self.learn(child, child.row % 2)
        group.siblings = 0

    def copy(self, sequence: Sequence) -> bool:
        """Copy-on-write; False, and no change, where there is no frame."""
        before = self.state()
        made = self.memory.make_writable(sequence.row, sequence.computed)
        assert made == self.model.make_writable(sequence.row, sequence.computed)
        if made is None:
            self.refused(before)
            return False
        source, target = made
        assert self.memory.take_copies() == [made]
        self.slots[target] = list(self.slots[source])
        self.sources.append(source)
        return True

    @rule(when=lambda self: self.sources)
    def copied(self, choose: Choose) -> None:
        count = choose.between(1, len(self.sources))
        gone, self.sources = self.sources[:count], self.sources[count:]
        self.memory.copied(gone)
        for source in gone:
            self.model.end_move([source])

    def end_copies(self, group: Group) -> None:
        """A step's copies are over before a row that it computed for gives back what they read."""
        frames = {f for s in group.members for f in self.model.rows[s.row].frames}
        over = [source for source in self.sources if source in frames]
        self.sources = [source for source in self.sources if source not in frames]
        self.memory.copied(over)
        for source in over:
            self.model.end_move([source])

    def grow(self, sequences: list[Sequence]) -> bool:
        rows = np.array([s.row for s in sequences], np.int32)
        lengths = np.array([s.computed + 1 for s in sequences], np.int32)
        assert self.memory.short(rows, lengths).tolist() == list(range(len(rows)))
        before = self.state()
        frames = self.memory.grow(rows)
        expected = self.model.grow(rows.tolist())
        if expected is None:
            assert frames is None
            self.refused(before)
            return False
        assert frames.tolist() == expected
        return True

    @rule(weight=2, when=lambda self: self.leapers())
    def leap(self, choose: Choose) -> None:
        """Several steps at once: frames for all of them in one call, as single steps would have taken them."""
        leapers = self.leapers()
        steps = choose.between(2, 12)
        asked: list[tuple[Group, Sequence]] = []
        for ahead in range(steps):
            for group, sequence in leapers:
                if (sequence.computed + ahead) % self.size == 0:
                    held = -(-(sequence.computed + ahead) // self.size)
                    if held >= self.capacity(sequence) // self.size:
                        asked.append((group, sequence))
        if not asked or len(asked) > self.memory.free_blocks:
            return
        rows = [sequence.row for _, sequence in asked]
        was_free = self.memory.pool.free
        nth = [rows[:at].count(row) for at, row in enumerate(rows)]
        frames, num_free = self.memory.grow_each(np.array(rows, np.int32), np.array(nth, np.int32))
        assert frames.tolist() == self.model.grow(rows)
        assert num_free == min(was_free, len(rows))
        for _ in range(steps):
            for group, sequence in leapers:
                self.write(group, sequence, 1)
                self.learn(sequence, choose.between(0, 1))

    def leapers(self) -> list[tuple[Group, Sequence]]:
        return [
            (group, sequence)
            for group in self.in_state("run")
            for sequence in group.members
            if len(sequence.tokens) - sequence.computed == 1
            and len(sequence.tokens) < 60
            and not self.memory.shares_tail(sequence.row, sequence.computed)
        ]

    @rule(weight=4, when=lambda self: self.in_state("run"))
    def computed(self, choose: Choose) -> None:
        """What has committed of each may be found: all that is computed, or less."""
        running = [s for group in self.in_state("run") for s in group.members]
        found = {s.row: choose.one_of([s.computed, s.computed, s.computed // 2]) for s in running}
        positions = np.zeros(choose.one_of([16, 18, 40]), np.int32)
        for row, count in found.items():
            if row < len(positions):
                positions[row] = count
        self.memory.computed(positions)
        self.model.computed({row: int(positions[row]) for row in found if row < len(positions)})

    # -- leaving -----------------------------------------------------------------------------------------------

    @rule(weight=3, when=lambda self: self.in_state("run"))
    def end_sequence(self, choose: Choose) -> None:
        group = choose.one_of(self.in_state("run"))
        sequence = choose.one_of(group.members)
        if sequence is group.members[0] and any(s.computed < group.shared for s in group.members):
            return  # Others still wait for what it computes.
        self.give_back(group, sequence, publish=bool(choose.between(0, 3)))
        self.close(group, sequence)

    def give_back(self, group: Group, sequence: Sequence, *, publish: bool) -> None:
        self.verify(group, sequence)
        self.end_copies(group)
        if publish:
            self.memory.publish(sequence.row, sequence.computed)
            self.model.publish(sequence.row, sequence.computed)
        else:
            self.memory.silence(sequence.row)
        held = len(self.model.rows[sequence.row].frames)
        assert self.memory.release(sequence.row) == held
        self.model.release(sequence.row)
        sequence.computed = 0

    def close(self, group: Group, sequence: Sequence) -> None:
        self.memory.close(sequence.row)
        self.model.close(sequence.row)
        self.rows.append(sequence.row)
        group.members.remove(sequence)
        if not group.members:
            group.over = True
            if group.where not in ("out", "in"):
                self.groups.remove(group)

    @rule(weight=2, when=lambda self: self.in_state("run"))
    def preempt(self, choose: Choose) -> None:
        group = choose.one_of(self.in_state("run"))
        for sequence in reversed(group.members):
            self.give_back(group, sequence, publish=True)
        group.where = "off"

    @rule(weight=3, when=lambda self: self.in_state("off"))
    def resume(self, choose: Choose) -> None:
        group = choose.one_of(self.in_state("off"))
        known = [(s.row, len(s.tokens)) for s in group.members]
        common = min(tokens - 1 for _, tokens in known)
        texts = [s.tokens[:common] for s in group.members]
        while any(text[:common] != texts[0][:common] for text in texts):
            common -= 1
        if len(known) == 1:
            common = 0
        reserve = choose.one_of([0, 1])
        self.look_up(known[0][0], known[0][1] - 1)
        before = self.state()
        grant = self.memory.admit_group(known, common, reserve)
        assert grant.value == self.model.admit_group(known, common, reserve)
        if grant is Grant.OK:
            self.admitted(group, common)
        else:
            self.refused(before)

    @rule(weight=2, when=lambda self: self.in_state("run"))
    def swap_out(self, choose: Choose) -> None:
        group = choose.one_of(self.in_state("run"))
        if any(s.computed < group.shared for s in group.members):
            return
        members = [(s.row, min(s.computed, len(s.tokens) - 1)) for s in group.members]
        for sequence, (row, valid) in zip(group.members, members, strict=True):
            self.verify(group, sequence)
            self.memory.publish(row, valid)
            self.model.publish(row, valid)
        self.end_copies(group)
        before = self.state()
        move = self.memory.swap_out(group.number, members)
        expected = self.model.swap_out(group.number, members)
        if expected is None:
            assert move is None
            self.refused(before)
            return
        assert (move.frames.tolist(), move.hosts.tolist()) == expected
        for sequence, (_, valid) in zip(group.members, members, strict=True):
            sequence.computed = valid
        group.where, group.move = "out", move

    @rule(weight=3, when=lambda self: any(g.where in ("out", "in") for g in self.groups))
    def end_transfer(self, choose: Choose) -> None:
        """Only now are the blocks read and written."""
        group = choose.one_of([g for g in self.groups if g.where in ("out", "in")])
        ok = choose.between(0, 4) > 0
        move, out = group.move, group.where == "out"
        pairs = list(zip(move.frames.tolist(), move.hosts.tolist(), strict=True))
        for frame, host in pairs if ok else []:
            if out:
                self.host[host] = list(self.slots[frame])
            else:
                self.slots[frame] = list(self.host[host])
        if not out and not ok:
            for sequence in group.members:
                self.memory.silence(sequence.row)
                self.model.silence(sequence.row)
        self.memory.moved(move.frames)
        self.model.end_move(move.frames.tolist())
        if out and ok and not group.over:
            group.where = "host"
            return
        self.memory.forget(group.number)
        self.model.forget(group.number)
        if group.over:
            self.groups.remove(group)
        elif out:
            group.where = "off"
        elif ok:
            group.where = "run"
            for sequence in group.members:
                self.verify(group, sequence)
        else:
            for sequence in group.members:
                sequence.computed = 0
                self.give_back(group, sequence, publish=False)
            group.where = "off"

    @rule(weight=3, when=lambda self: self.in_state("host"))
    def swap_in(self, choose: Choose) -> None:
        group = choose.one_of(self.in_state("host"))
        members = [(s.row, len(s.tokens)) for s in group.members]
        valid, reserve = group.members[0].computed, choose.one_of([0, 1])
        self.look_up(members[0][0], valid)
        before = self.state()
        move = self.memory.swap_in(group.number, members, valid, reserve)
        expected = self.model.swap_in(group.number, members, valid, reserve)
        if expected is None:
            assert move is Grant.LATER
            self.refused(before)
            return
        assert isinstance(move, Move)
        assert (move.frames.tolist(), move.hosts.tolist()) == expected
        assert self.memory.last_hits == self.model.last_hits
        for frame in move.frames.tolist():
            self.slots[frame] = [GARBAGE] * self.size
        group.shared = 0
        group.where, group.move = "in", move

    @rule(when=lambda self: self.in_state("off", "out", "host", "in"))
    def drop(self, choose: Choose) -> None:
        """A request that is not running ends."""
        group = choose.one_of(self.in_state("off", "out", "host", "in"))
        if group.where == "host":
            self.memory.forget(group.number)
            self.model.forget(group.number)
        for sequence in list(group.members):
            self.memory.silence(sequence.row)
            self.memory.release(sequence.row)
            self.model.release(sequence.row)
            self.close(group, sequence)

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

    def finish(self, choose: Choose) -> None:
        while any(g.where in ("out", "in") for g in self.groups):
            self.end_transfer(choose)
        while self.sources:
            self.copied(choose)
        while self.in_state("off", "host"):
            self.drop(choose)
        for group in list(self.groups):
            for sequence in reversed(list(group.members)):
                self.give_back(group, sequence, publish=True)
                self.close(group, sequence)
        self.check()
        self.check_all()
        assert not self.groups
        assert self.memory.free_blocks == self.total
        assert self.memory.host.free == self.memory.host.total
