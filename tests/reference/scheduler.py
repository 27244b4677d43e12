"""A scheduler as a list of objects: first come first served, recompute, one sequence a request. Slow, and obvious."""

from engine.core.log import Admitted, Ended, Evicted, Grew, Preempted, Released
from engine.core.plan import Finish
from tests.reference.manager import Content, Manager


class Sequence:
    """`scheduled`: positions computed or promised by an open plan. `known`: tokens known when it last began to run."""

    def __init__(self, number: int, tokens: list[int], limit: int) -> None:
        self.number, self.tokens, self.limit = number, tokens, limit
        self.row, self.known, self.scheduled, self.floor = -1, len(tokens), 0, -1
        self.state = (
            "waiting"  # Then running, off (given up, frames still due), able (to come back), over.
        )


class Step:
    def __init__(self, number: int, items: list[tuple[Sequence, int, int]], decodes: int) -> None:
        self.number, self.items, self.num_decodes = number, items, decodes
        self.samples = [start + count >= s.known for s, start, count in items]
        self.gone: set[Sequence] = set()

    def names(self, sequence: Sequence) -> bool:
        return any(s is sequence for s, _, _ in self.items)


class ReferenceScheduler:
    def __init__(
        self, blocks: int, size: int, budget: int, batch: int, plans: int, reserve: int, cache: bool
    ) -> None:
        self.memory = Manager(blocks, size, prefix_cache=cache)
        self.size, self.budget, self.batch, self.plans = size, budget, batch, plans
        self.reserve = reserve
        self.all: list[Sequence] = []
        self.open: list[Step] = []
        self.rows = list(range(15, -1, -1))
        self.next_step = 0
        self.refused: tuple[int, int, int] | None = None
        self.log: list[object] = []

    def those(self, *states: str) -> list[Sequence]:
        """By arrival, which is the order of everything here."""
        return [s for s in self.all if s.state in states]

    def submit(self, number: int, tokens: list[int], max_tokens: int) -> None:
        self.all.append(Sequence(number, list(tokens), len(tokens) + max_tokens))

    def abort(self, number: int) -> None:
        sequence = self.all[number]
        if sequence.state != "over":
            self.log.append(Ended(self.next_step, number, -1, Finish.ABORTED))
            self.end(self.next_step, sequence)

    # -- a step ------------------------------------------------------------------------------------------------

    def schedule(self) -> Step | None:
        if len(self.open) == self.plans:
            return None
        running = self.those("running")
        decodes = [s for s in running if s.scheduled >= s.known and s.scheduled + 1 < s.limit]
        waits = self.make_room([s for s in decodes if self.room(s) <= s.scheduled])
        decodes = [s for s in decodes if s.state == "running" and s not in waits]
        contended = bool(waits) or len(self.those("running")) < len(running)
        items = [(s, s.scheduled, 1) for s in decodes]
        budget = self.budget - len(items)
        for s in self.those("running"):
            if s.scheduled < s.known and budget:
                items.append((s, s.scheduled, min(budget, s.known - s.scheduled)))
                budget -= items[-1][2]
        while budget and not contended and (s := self.admit()) is not None:
            items.append((s, s.scheduled, min(budget, s.known - s.scheduled)))
            budget -= items[-1][2]
        if not items:
            return None
        for s, start, count in items:
            s.scheduled = start + count
        self.open.append(Step(self.next_step, items, len(decodes)))
        self.next_step += 1
        return self.open[-1]

    def room(self, s: Sequence) -> int:
        return len(self.memory.rows[s.row].frames) * self.size

    def make_room(self, short: list[Sequence]) -> set[Sequence]:
        """Those that sit out this step for want of a frame."""
        if len(short) <= self.memory.frames.available:
            self.grow(short)
            return set()
        due = sum(self.room(s) for s in self.all if s.row >= 0 and s.state in ("off", "over"))
        waits: set[Sequence] = set()
        for s in short:
            while s.state == "running" and s not in waits:
                if self.memory.frames.available:
                    self.grow([s])
                    break
                victim = None if due else self.victim(s)
                if victim is None:
                    due -= self.size * (due > 0)
                    waits.add(s)
                else:
                    due += self.preempt(victim, s)
        return waits

    def grow(self, sequences: list[Sequence]) -> None:
        if sequences:
            rows = tuple(s.row for s in sequences)
            frames = self.memory.grow(rows)
            self.note_evicted()
            self.log.append(Grew(self.next_step, rows, tuple(frames)))

    def victim(self, asking: Sequence) -> Sequence | None:
        running = self.those("running")
        others = [s for s in running[1:] if self.known(s) > s.floor]
        if asking is running[0]:
            others = others or running[1:]
        else:
            others = [s for s in others if s.number >= asking.number]
        return others[-1] if others else None

    def preempt(self, s: Sequence, asking: Sequence) -> int:
        """How many positions' frames come back only later."""
        s.known = self.known(s)
        self.log.append(
            Preempted(self.next_step, s.number, "recompute", s.known, 0, 0, asking.number)
        )
        s.state = "off"
        return self.leave(s)

    def leave(self, s: Sequence) -> int:
        for step in self.open:
            if step.names(s):
                step.gone.add(s)
        if any(step.names(s) for step in self.open):
            self.memory.publish(s.row, self.computed(s))
            return self.room(s)
        self.give_back(self.next_step, s)
        return 0

    def computed(self, s: Sequence) -> int:
        starts = [start for step in self.open for other, start, _ in step.items if other is s]
        return starts[0] if starts else s.scheduled

    def known(self, s: Sequence) -> int:
        return max(s.known, self.computed(s) + 1 if self.computed(s) >= s.known else 0)

    def admit(self) -> Sequence | None:
        able, new = self.those("able"), self.those("waiting")
        if not able and (self.those("off") or not new):
            return None
        s = (able or new)[0]
        if len(self.those("running")) == self.batch:
            return None
        reserve = self.reserve if self.those("running") else 0
        free = self.memory.frames.available
        if self.refused is not None:
            refused, had, kept = self.refused
            if refused == s.number and free <= had and reserve >= kept:
                return None
        self.memory.computed({r.row: self.computed(r) for r in self.those("running")})
        if s.state == "waiting":
            s.row = self.rows.pop()
            self.memory.open(s.row, Content(list(s.tokens), None, 0), "")
        if self.memory.admit_group([(s.row, s.known)], 0, reserve) != "ok":
            self.refused = (s.number, free, reserve)
            if s.state == "waiting":
                self.memory.close(s.row)
                self.rows.append(s.row)
                s.row = -1
            return None
        self.refused = None
        s.scheduled = self.memory.last_hits * self.size
        if s.state == "able":
            s.floor = s.known
        s.state = "running"
        self.note_evicted()
        frames = tuple(self.memory.rows[s.row].frames)
        self.log.append(Admitted(self.next_step, s.number, s.row, frames, self.memory.last_hits))
        return s

    def note_evicted(self) -> None:
        if self.memory.evicted:
            self.log.append(Evicted(self.next_step, tuple(self.memory.evicted)))
            self.memory.evicted = []

    # -- its results -------------------------------------------------------------------------------------------

    def commit(self, tokens: list[int], stops: list[int]) -> None:
        """One token and one stop code for each item of the oldest open step that samples."""
        step = self.open.pop(0)
        heard = [
            (s, start + count, token, stop)
            for (s, start, count), token, stop in zip(
                [item for item, samples in zip(step.items, step.samples, strict=True) if samples],
                tokens,
                stops,
                strict=True,
            )
            if s not in step.gone
        ]
        for s, _, token, _ in heard:
            self.memory.accept(s.row, token)
            s.tokens.append(token)
        for s, position, _, stop in heard:
            reason = stop or (Finish.LENGTH if position + 1 >= s.limit else 0)
            if reason:
                self.log.append(Ended(step.number, s.number, 0, reason))
                self.end(step.number, s)
        for s, _, _ in step.items:
            if s in step.gone and not any(other.names(s) for other in self.open):
                self.give_back(step.number, s)

    def end(self, step: int, s: Sequence) -> None:
        """Over; its frames come back now, or with the last open step that names it."""
        ran = s.state == "running"
        if ran:
            s.known = self.known(s)
        s.state = "over"
        for other in self.open:
            if other.names(s):
                other.gone.add(s)
        if s.row >= 0 and not any(other.names(s) for other in self.open):
            self.give_back(step, s)
        elif ran:
            self.memory.publish(s.row, min(self.computed(s), s.known))

    def give_back(self, step: int, s: Sequence) -> None:
        if s.state == "off":
            s.scheduled, s.state = min(s.scheduled, s.known - 1), "able"
        held = self.memory.rows[s.row].frames
        if held:
            self.memory.publish(s.row, min(s.scheduled, s.known))
            self.log.append(Released(step, s.row, len(held)))
            self.memory.release(s.row)
        s.scheduled = 0
        if s.state == "over":
            self.memory.close(s.row)
            self.rows.append(s.row)
            s.row = -1
