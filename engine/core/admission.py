"""Admission: who comes in next, and whether it fits now. Resumes what is off before it lets in what is new.

Knows queue, book and memory; knows no decodes and no open plans.
"""

from engine.core import log as records
from engine.core.allocator import Grant
from engine.core.book import Book, Group
from engine.core.config import CoreConfig
from engine.core.ids import RequestId, TimeNs
from engine.core.policy import Shares
from engine.core.pressure import Pressure
from engine.core.queue import Waiting, WaitingQueue
from engine.core.rows import State

Admitted = list[tuple[RequestId, int, int]]
"""(request, index of the sequence in it, row) of sequences that got their rows."""


class Admission:
    """The way in, over a `Book` and a `WaitingQueue`."""

    def __init__(
        self,
        config: CoreConfig,
        book: Book,
        queue: WaitingQueue,
        pressure: Pressure,
        shares: Shares | None,
    ) -> None:
        """`shares` where tenants are charged."""
        self._limits = config.scheduler
        self._watermark = int(config.memory.watermark * config.memory.num_blocks)
        self._book = book
        self._queue = queue
        self._pressure = pressure
        self._shares = shares
        self._refused: tuple[RequestId, int, int] | None = None
        """(request, free frames, reserve) of the last refusal: with no more frames it would be refused again."""
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether anyone waits to come in, or to come back."""
        return bool(self._book.off or self._queue)

    def admit(
        self, chunks: list[tuple[int, int]], budget: int, now: TimeNs
    ) -> tuple[tuple[RequestId, int, int], ...]:
        """Resumes what is off and admits what waits, as far as memory, batch and budget go; adds their first chunks."""
        book, table, limits = self._book, self._book.table, self._limits
        admitted: Admitted = []
        closed = limits.batching == "static" and book.seats > 0
        partial = sum(count < table.target[row] - table.scheduled[row] for row, count in chunks)
        partial += len(book.prefilling) - len(chunks)
        while budget > 0:
            if limits.max_partial_prefills is not None and partial >= limits.max_partial_prefills:
                break
            if closed and not book.off:
                break
            rows = self._admit_next(admitted, now)
            if rows is None:
                break
            for row in rows[:1]:
                left = int(table.target[row] - table.scheduled[row])
                count = min(budget, left)
                chunks.append((row, count))
                budget -= count
                partial += count < left
        return tuple(admitted)

    def _admit_next(self, admitted: Admitted, now: TimeNs) -> list[int] | None:
        """Brings in the next group: rows that have known tokens to compute; None where none can come in now."""
        book, limits = self._book, self._limits
        waiting = None
        if book.off:
            group = book.groups[book.off[0][1]]
            request_id, width = group.request.id, len(group.rows)
        else:
            waiting = self._queue.head(now) if self._queue and not book.num_off else None
            if waiting is None:
                return None
            request_id, width = waiting.request.id, waiting.request.num_sequences
        if book.seats + width > limits.max_batch:
            return None
        reserve = self._watermark if book.seats else 0
        free = self._book.memory.free_blocks
        if self._refused is not None:
            refused, had, reserved = self._refused
            if refused == request_id and free <= had and reserve >= reserved:
                return None
        if book.memory.shares_content:
            book.memory.computed(book.findable())
        if waiting is None:
            if self._pressure.resume(group, reserve):
                self._refused = None
                return [r for r in group.rows if r in book.prefilling]
        else:
            row = self._admit_new(waiting, reserve, admitted)
            if row is not None:
                self._refused = None
                return [row]
        self._refused = (request_id, free, reserve)
        return None

    def _admit_new(self, waiting: Waiting, reserve: int, admitted: Admitted) -> int | None:
        """Gives a new request its rows and its first sequence the frames of the prompt; the first row."""
        book, table, request = self._book, self._book.table, waiting.request
        row = table.take()
        self._book.memory.open(
            row, request.content, request.salt, request.num_prompt, waiting.limit
        )
        if self._book.memory.admit_group([(row, request.num_prompt)], 0, reserve) is not Grant.OK:
            self._book.memory.close(row)
            table.free(row)
            return None
        self._queue.remove(request.id)
        rows = [row, *(table.take() for _ in range(request.num_sequences - 1))]
        rank = book.rank_of(waiting)
        for index, member in enumerate(rows):
            table.open(member, request.id, index, rank, request.num_prompt, waiting.limit)
            table.state[member] = State.FORMING
            if self._shares is not None:
                table.tenant[member] = self._shares.number(request.tenant)
            admitted.append((request.id, index, member))
        book.groups[request.id] = Group(waiting, rank, rows)
        book.seats += len(rows)
        hits = self._book.memory.last_hits
        table.scheduled[row] = hits * self._book.memory.block_size
        if request.content is not None:
            self.prefix_queries_tokens += request.num_prompt
            self.prefix_hits_tokens += hits * self._book.memory.block_size
        book.record_evictions()
        if book.keeps_log:
            blocks = tuple(self._book.memory.blocks_of(row).tolist())
            book.record(records.Admitted(book.next_step, request.id, row, blocks, hits))
        table.state[row] = State.RUNNING
        book.run(row)
        return row

    def is_quiet(self, now: TimeNs) -> bool:
        """Whether nobody who waits could come in while nothing but growth happens."""
        book = self._book
        if not self._queue and not book.num_off:
            return True
        if book.seats >= self._limits.max_batch:
            return True
        if self._limits.batching == "static" and book.seats and not book.off:
            return True
        if self._shares is not None and not book.off:
            return False  # Growth changes who is served least.
        if book.off:
            request_id = book.off[0][1]
        elif book.num_off:
            return True
        else:
            head = self._queue.head(now)
            assert head is not None
            request_id = head.request.id
        if self._refused is None:
            return False
        # Growth only takes frames, so what was refused for want of them stays refused.
        return self._refused[0] == request_id and self._book.memory.free_blocks <= self._refused[1]
