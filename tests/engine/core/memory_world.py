"""Rules over the block manager: sequences that compute, share, grow, fork, copy, publish, leave, swap and come back.

What they must leave as it should be, and what is compared after each, is the pair's.
"""

import numpy as np

from engine.core.allocator import Grant, Move
from tests.engine.core.memory_pair import GARBAGE, Group, MemoryPair, Sequence
from tests.engine.core.worlds import Choose, rule

PROMPTS = [[0] * 40, [1, 0] * 20, [0] * 9 + [1] * 31, [1, 1, 0] * 13]


class MemoryWorld(MemoryPair):
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
