"""The scheduler: which rows compute what in the next step, who gets frames, and who gives way. A pager without a clock.

Knows requests, rows and memory through `Allocator`; knows no tokens' meaning, no text, no device, no time of its own.

Order of one step: every running decode, oldest of the highest class first, then prompt chunks of running rows, then work
that was preempted, then new requests by the policy, all inside the token budget. A row is named by at most two open
plans; what ends or is preempted while a plan names it keeps its frames until the last such plan commits, and its later
results are discarded.

Progress: the oldest of the highest class is never a victim, and a request whose tokens cannot fit in the empty pool is
rejected at submission, so the oldest always finishes.
"""

import heapq

import numpy as np

from engine.core import leap
from engine.core import log as records
from engine.core.allocator import Allocator, Grant
from engine.core.arrays import I8, I32, I64, Bools
from engine.core.book import NO_ROWS, Book, Group, OpenPlan, Status
from engine.core.config import CoreConfig
from engine.core.errors import InvariantError
from engine.core.ids import RequestId, TimeNs
from engine.core.memory import BlockManager
from engine.core.plan import (
    Blocked,
    Finish,
    Idle,
    MemoryReport,
    Outcome,
    Plan,
    Rejected,
    Request,
    Results,
    StepFailed,
    Transfer,
)
from engine.core.policy import Shares
from engine.core.pressure import Pressure
from engine.core.queue import Waiting, WaitingQueue
from engine.core.rows import RowTable, State


class Scheduler:
    """The contract: `submit`, `abort`, `expire`, `schedule`, `extend`, `commit`, `transfer_done`, `memory`.

    Every method checks first and then changes: on any exception but `InvariantError` the state is as it was.
    """

    def __init__(self, config: CoreConfig, memory: Allocator | None = None) -> None:
        limits = config.scheduler
        self.config = config
        self.allocator: Allocator = memory or BlockManager(config.memory)
        self._book = Book(self.allocator, keep_log=limits.log, ranked=limits.policy != "fcfs")
        self._pressure = Pressure(self._book, limits)
        self._shares = Shares(limits.prompt_weight, limits.output_weight)
        self._fair = limits.policy == "fair"
        self._queue = WaitingQueue(limits, self._shares)
        self._watermark = int(config.memory.watermark * config.memory.num_blocks)
        self._deadlines: list[tuple[int, RequestId]] = []
        self._next_arrival = 0
        self._now = TimeNs(0)
        self._refused: tuple[RequestId, int, int] | None = None
        self._decodes = _DecodeCache()
        self.prefix_queries_tokens = 0
        """Prompt tokens of admitted requests that have content, counted once a request."""
        self.prefix_hits_tokens = 0
        """Of these, the ones that were cached."""

    @property
    def log(self) -> list[records.Record]:
        """The decision log since the last `take_log`."""
        return self._book.log

    def take_log(self) -> list[records.Record]:
        """The decision log since the last take; the list is the caller's."""
        log, self._book.log = self._book.log, []
        return log

    @property
    def num_preemptions(self) -> int:
        """Groups that were preempted and have left."""
        return self._pressure.num_recompute + self._pressure.num_swap

    @property
    def num_swaps(self) -> int:
        """Of the preemptions, those by swap."""
        return self._pressure.num_swap

    # -- requests ----------------------------------------------------------------------------------------------

    def submit(self, request: Request, now: TimeNs) -> Rejected | None:
        """Queues `request`, or says why it can never run; a rejected request leaves no trace.

        Raises:
            ValueError: the id is in use, or time went backwards.
        """
        self._tick(now)
        if request.id in self._book.groups or request.id in self._queue:
            raise ValueError(f"request {request.id} is already here")
        limit = self._limit_of(request)
        if isinstance(limit, Rejected):
            return limit
        self._queue.push(Waiting(request, self._next_arrival, now, limit))
        self._next_arrival += 1
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.id))
        return None

    def _limit_of(self, request: Request) -> int | Rejected:
        """Length, prompt and output, at which each sequence of the request ends."""
        prompt, width = request.num_prompt, request.num_sequences
        limits = self.config.scheduler
        pool = self.config.memory.num_blocks * self.config.memory.block_size
        if prompt < 1:
            return Rejected("empty_prompt", "the prompt has no tokens; send at least one")
        if request.max_tokens is not None and request.max_tokens < 1:
            return Rejected("bad_max_tokens", "max_tokens must be at least 1")
        if not 1 <= width <= limits.max_batch:
            return Rejected(
                "bad_num_sequences", f"n must be between 1 and {limits.max_batch}, the batch limit"
            )
        most = request.max_tokens or 1
        asked = f"{most} more" if width == 1 else f"{width} times {most} more"
        if prompt + most > limits.max_context:
            return Rejected(
                "context_exceeded",
                f"the prompt has {prompt} tokens and asks for {most} more, "
                f"but the context holds {limits.max_context}",
            )
        # The last token is never fed back, so it takes no position.
        if not self.allocator.could_hold(prompt, prompt + most - 1, width):
            return Rejected(
                "pool_exceeded",
                f"the prompt has {prompt} tokens and asks for {asked}, but the KV pool holds {pool}",
            )
        if request.max_tokens is not None:
            return prompt + most
        return min(limits.max_context, self.allocator.longest(prompt, width) + 1)

    def abort(self, request_id: RequestId, now: TimeNs) -> bool:
        """Ends the request in whatever state it is; True where this call ended it, False where it was over or unknown."""
        self._tick(now)
        return self._end_request(request_id, Finish.ABORTED)

    def expire(self, now: TimeNs) -> tuple[RequestId, ...]:
        """Ends the requests whose deadline has passed; these, in order of deadline."""
        self._tick(now)
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heapq.heappop(self._deadlines)
            if self._end_request(request_id, Finish.DEADLINE):
                expired.append(request_id)
        return tuple(expired)

    def next_timer(self) -> TimeNs | None:
        """When `expire` and `schedule` may have something to do though nothing else happens."""
        while self._deadlines and not self._is_here(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        times = [TimeNs(self._deadlines[0][0])] if self._deadlines else []
        rise = self._queue.next_rise(self._now)
        return min([*times, rise]) if rise is not None else (times[0] if times else None)

    def _is_here(self, request_id: RequestId) -> bool:
        return request_id in self._queue or request_id in self._book.groups

    def _end_request(self, request_id: RequestId, reason: Finish) -> bool:
        book, table = self._book, self._book.table
        if request_id in self._queue:
            self._queue.remove(request_id)
            book.record(records.Ended(book.next_step, request_id, -1, reason))
            return True
        group = book.groups.pop(request_id, None)
        if group is None:
            return False
        book.record(records.Ended(book.next_step, request_id, -1, reason))
        if group.status in (Status.RUNNING, Status.MOVING_IN):
            book.seats -= len(group.rows)
        self._pressure.drop(group)
        for row in group.rows:
            if table.state[row] == State.RUNNING:
                book.retire(book.next_step, row)
            elif table.state[row] == State.FORMING:
                self.allocator.close(row)
                table.free(row)
            else:
                table.state[row] = State.ENDED
                if group.status is Status.MOVING_IN:
                    self.allocator.silence(row)
                if not book.named(row):
                    book.give_back(book.next_step, row)
        group.rows = []
        group.status = Status.ENDED
        return True

    # -- steps -------------------------------------------------------------------------------------------------

    def schedule(self, now: TimeNs) -> Plan | Idle | Blocked:
        """The next step. `Blocked` where a commit or a transfer must come first, `Idle` where nothing is left."""
        self._tick(now)
        book = self._book
        if len(book.open) >= self.config.scheduler.max_open_plans:
            return Blocked()
        decodes, contended = self._plan_decodes()
        if not book.prefilling and (contended or not (book.off or self._queue)):
            if len(decodes):
                return self._open_decodes(decodes)
            return self._nothing_planned()
        budget = self.config.scheduler.token_budget - len(decodes)
        chunks = self._plan_chunks(budget)
        budget -= sum(count for _, count in chunks)
        admitted: list[tuple[RequestId, int, int]] = []
        if not contended:
            self._admit(chunks, budget, admitted)
        if chunks or admitted:
            return self._open_mixed(decodes, chunks, tuple(admitted))
        return self._open_decodes(decodes) if len(decodes) else self._nothing_planned()

    def most_steps(self, plan: Plan) -> int:
        """How many steps `extend` could give `plan` if memory has room for them; 1: none but its own. Changes nothing.

        What comes from outside (a submission, an abort, a transfer's end, `next_timer`) ends quiet time, so the driver
        extends by the steps that start before that. O(rows).
        """
        if self._pressure.num_transfers or not self._queue_is_quiet():
            return 1
        return leap.most_steps(self._book, plan)

    def _queue_is_quiet(self) -> bool:
        """Whether nobody who waits could come in while nothing but growth happens."""
        book = self._book
        if not self._queue and not book.num_off:
            return True
        if book.seats >= self.config.scheduler.max_batch:
            return True
        if self._fair and not book.off:
            return False  # Growth changes who is served least.
        if book.off:
            request_id = book.off[0][1]
        elif book.num_off:
            return True
        else:
            head = self._queue.head(self._now)
            assert head is not None
            request_id = head.request.id
        if self._refused is None:
            return False
        # Growth only takes frames, so what was refused for want of them stays refused.
        return self._refused[0] == request_id and self.allocator.free_blocks <= self._refused[1]

    def extend(self, plan: Plan, steps: int) -> Plan:
        """Leap: makes `plan`, before any other call, run `steps` times, or as often as `most_steps` and memory allow.

        Equal to the single steps in state and log. The plan that it returns takes the place of `plan`.
        """
        steps = min(steps, self.most_steps(plan))
        if steps <= 1:
            return plan
        longer = leap.extend(self._book, plan, steps)
        more = longer.steps - 1
        self._decodes.quiet -= more
        if self._fair and more:
            self._shares.charge_output(self._book.table.tenant[plan.rows], more)
        return longer

    def commit(self, plan: Plan, results: Results | StepFailed, now: TimeNs) -> Outcome:
        """Takes in what the oldest open plan computed.

        Raises:
            ValueError: `plan` is not the oldest open plan, or `results` are not for its sampling rows.
        """
        self._tick(now)
        book = self._book
        if not book.open or plan is not book.open[0].plan:
            raise ValueError("plans commit in the order in which they were made")
        sampling = plan.sampling
        if isinstance(results, Results) and not (
            results.rows is sampling or np.array_equal(results.rows, sampling)
        ):
            raise ValueError("results must name the plan's sampling rows in plan order")
        entry = book.open.popleft()
        if len(plan.copy_sources):
            self.allocator.copied(plan.copy_sources.tolist())
        if isinstance(results, StepFailed):
            outcome = self._fail(entry)
        else:
            outcome = self._accept(entry, sampling, results)
        if entry.gone:
            self._settle(entry)
        return outcome

    def _accept(self, entry: OpenPlan, sampling: I32, results: Results) -> Outcome:
        """Takes in tokens, and ends the sequences that stop, fail or are full."""
        plan, book, tokens = entry.plan, self._book, results.tokens
        if plan.steps > 1:
            return self._accept_leap(entry, tokens)
        rows, stops = sampling, results.stops
        positions = plan.starts + plan.counts
        if plan.num_decodes < len(plan.rows):
            positions = np.concatenate([positions[plan.samples], positions[plan.fork_from]])
        if entry.gone:
            heard = _others(rows, entry.gone)
            self._refund(rows[~heard])
            rows, stops, positions, tokens = (
                rows[heard],
                stops[heard],
                positions[heard],
                tokens[heard],
            )
        ended, reasons = NO_ROWS, stops[:0]
        if stops.any() or len(entry.finishing):
            good = stops != Finish.FAILED
            full = np.isin(rows, entry.finishing)
            reasons = np.where(full & (stops == 0), Finish.LENGTH, stops).astype(np.int8)
            ends = reasons != Finish.NONE
            ended, reasons = rows[ends], reasons[ends]
            rows, positions, tokens = rows[good], positions[good], tokens[good]
        if len(rows):
            self.allocator.accept(rows, positions, tokens)
        if rows is plan.rows:
            return self._outcome(plan, rows, plan.requests, tokens, plan.counts, ended, reasons)
        counts = np.ones(len(rows), np.int32)
        requests = book.table.request[rows]
        return self._outcome(plan, rows, requests, tokens, counts, ended, reasons)

    def _accept_leap(self, entry: OpenPlan, tokens: I32) -> Outcome:
        """Takes in a leap: of rows that are gone since, all tokens but the last."""
        plan = entry.plan
        heard = _others(plan.rows, entry.gone)
        for ahead in range(len(tokens)):
            kept = slice(None) if ahead < plan.steps - 1 else heard
            self.allocator.accept(
                plan.rows[kept], plan.starts[kept] + ahead + 1, tokens[ahead][kept]
            )
        self._refund(plan.rows[~heard])
        counts = np.where(heard, plan.steps, plan.steps - 1).astype(np.int32)
        nothing = np.zeros(0, np.int8)
        return self._outcome(plan, plan.rows, plan.requests, tokens, counts, NO_ROWS, nothing)

    def _fail(self, entry: OpenPlan) -> Outcome:
        """Ends every request that the plan names and that still runs: what it computed is not to be trusted."""
        plan, book = entry.plan, self._book
        named = book.table.request[np.concatenate([plan.rows, plan.fork_rows])]
        ended: list[int] = []
        for request_id in dict.fromkeys(named.tolist()):
            group = book.groups.get(RequestId(request_id))
            if group is not None and group.status is Status.RUNNING:
                running = [r for r in group.rows if book.table.state[r] == State.RUNNING]
                for row in running:
                    self.allocator.silence(row)
                ended.extend(running)
        self._refund(np.array([r for r in plan.sampling.tolist() if r in entry.gone], np.int32))
        reasons = np.full(len(ended), Finish.FAILED, np.int8)
        nothing = np.zeros(0, np.int64)
        return self._outcome(
            plan, NO_ROWS, nothing, NO_ROWS, NO_ROWS, np.array(ended, np.int32), reasons
        )

    def _outcome(
        self,
        plan: Plan,
        rows: I32,
        requests: I64,
        tokens: I32,
        counts: I32,
        ended: I32,
        reasons: I8,
    ) -> Outcome:
        """Ends the rows `ended` and reports the commit."""
        closed: list[RequestId] = []
        ended_requests = requests[:0]
        if len(ended):
            ended_requests = self._book.table.request[ended]
            for row, reason in zip(ended.tolist(), reasons.tolist(), strict=True):
                request_id = RequestId(int(self._book.table.request[row]))
                if reason == Finish.FAILED:
                    self.allocator.silence(row)
                if self._book.end_sequence(plan.last_step, row, Finish(reason)):
                    closed.append(request_id)
        for column in (tokens, ended, ended_requests, reasons):
            column.flags.writeable = False
        return Outcome(
            step=plan.step,
            rows=rows,
            requests=requests,
            tokens=tokens,
            counts=counts,
            ended_rows=ended,
            ended_requests=ended_requests,
            reasons=reasons,
            closed=tuple(closed),
        )

    def _settle(self, entry: OpenPlan) -> None:
        """Moves on what went off or ended while the plan was open and that no open plan names any more."""
        book, table = self._book, self._book.table
        for row in [*entry.plan.rows.tolist(), *entry.plan.fork_rows.tolist()]:
            if row not in entry.gone or book.named(row):
                continue
            if table.state[row] == State.ENDED:
                book.give_back(entry.plan.last_step, row)
            elif table.state[row] == State.OFF:
                group = book.groups[RequestId(int(table.request[row]))]
                if group.status is Status.LEAVING and not any(map(book.named, group.rows)):
                    self._pressure.leave(entry.plan.last_step, group)

    # -- transfers ---------------------------------------------------------------------------------------------

    def take_transfers(self) -> list[Transfer]:
        """Transfers to start now; ask after every `schedule` and `commit`."""
        return self._pressure.take_transfers()

    def transfer_done(self, number: int, ok: bool, now: TimeNs) -> None:
        """Transfer `number` is over; where it failed its request is computed again.

        Raises:
            ValueError: no such transfer is in flight.
        """
        self._tick(now)
        self._pressure.transfer_done(number, ok=ok)

    # -- looking -----------------------------------------------------------------------------------------------

    def memory(self) -> MemoryReport:
        """The pool and the queues at this moment. O(rows + entries)."""
        book = self._book
        swapped = sum(
            group.status in (Status.MOVING_OUT, Status.SWAPPED) for group in book.groups.values()
        )
        return self.allocator.report(
            book.computed(), book.num_running, len(self._queue) + book.num_off, swapped
        )

    def check_invariants(self) -> None:
        """Raises `InvariantError` where memory, rows or groups break a stated invariant. O(frames + rows)."""
        self.allocator.check_invariants()
        book, table, size = self._book, self._book.table, self.allocator.block_size
        if not np.array_equal(
            np.sort(book.running()), np.flatnonzero(table.state == State.RUNNING)
        ):
            raise InvariantError("the running lists and the rows' states disagree")
        computed = book.computed()
        for row in range(len(table.state)):
            held, state = self.allocator.held_by(row), table.state[row]
            if state == State.RUNNING:
                scheduled = table.scheduled[row]
                if not 0 <= computed[row] <= scheduled < table.limit[row]:
                    raise InvariantError(f"row {row} has its positions out of order")
                longest = max(int(table.known[row]), int(scheduled) + 1)
                if not scheduled <= held * size < longest + size:
                    raise InvariantError(f"row {row} has {held} blocks for {longest} tokens")
            elif held and state == State.ENDED and not book.named(row):
                raise InvariantError(f"row {row} is over and holds blocks")
            elif held and state in (State.FREE, State.FORMING):
                raise InvariantError(f"row {row} does not run and holds blocks")
        rows = [row for group in book.groups.values() for row in group.rows]
        over = [r for r in range(len(table.state)) if table.state[r] == State.ENDED]
        if sorted(rows + over) != np.flatnonzero(table.state != State.FREE).tolist():
            raise InvariantError("groups and rows disagree")
        idle = not rows and not over and not self._pressure.num_transfers and not book.open
        if idle and self.allocator.free_blocks != self.allocator.total_blocks:
            raise InvariantError("blocks are held though no sequence is left")

    # -- planning ----------------------------------------------------------------------------------------------

    def _plan_decodes(self) -> tuple[I32, bool]:
        """Rows that decode in this step, by rank, with room for their token; whether memory ran short."""
        book, table = self._book, self._book.table
        rows = book.decoding
        if not len(rows):
            return rows, False
        if not book.shared_tails:
            short = rows[self.allocator.short(rows, table.scheduled[rows] + 1)]
            if not len(short):
                return rows, False
            blocks = self.allocator.grow(short)
            if blocks is not None:
                book.record_evictions()
                grew = records.Grew(book.next_step, tuple(short.tolist()), tuple(blocks.tolist()))
                book.record(grew)
                return rows, False
        else:
            lacking = self.allocator.short(rows, table.scheduled[rows] + 1)
            tails = np.flatnonzero(np.isin(rows, list(book.shared_tails)))
            short = rows[np.union1d(lacking, tails)]
        if not len(short):
            return rows, False
        stalled = self._pressure.make_room(short)
        off = table.state[rows] != State.RUNNING
        contended = bool(stalled) or bool(off.any())
        if not contended:
            return rows, False
        return rows[~off & ~np.isin(rows, list(stalled))], True

    def _plan_chunks(self, budget: int) -> list[tuple[int, int]]:
        """(row, positions) of running prompts, by rank, inside `budget`."""
        table, chunks = self._book.table, []
        partial = 0
        most = self.config.scheduler.max_partial_prefills
        for row in self._book.prefilling:
            if budget <= 0 or (most is not None and partial >= most):
                break
            group = self._book.groups[RequestId(int(table.request[row]))]
            first = group.rows[0]
            if row != first and table.scheduled[first] < table.scheduled[row]:
                continue  # The first sequence computes what this one shares.
            left = int(table.known[row] - table.scheduled[row])
            count = min(budget, left)
            chunks.append((row, count))
            budget -= count
            partial += count < left
        return chunks

    def _admit(
        self, chunks: list[tuple[int, int]], budget: int, admitted: list[tuple[RequestId, int, int]]
    ) -> None:
        """Resumes what is off and admits what waits, as far as memory, batch and budget go; adds their first chunks."""
        book, table, limits = self._book, self._book.table, self.config.scheduler
        partial = sum(count < table.known[row] - table.scheduled[row] for row, count in chunks)
        partial += len(book.prefilling) - len(chunks)
        while budget > 0:
            if limits.max_partial_prefills is not None and partial >= limits.max_partial_prefills:
                return
            rows = self._admit_next(admitted)
            if rows is None:
                return
            for row in rows[:1]:
                left = int(table.known[row] - table.scheduled[row])
                count = min(budget, left)
                chunks.append((row, count))
                budget -= count
                partial += count < left

    def _admit_next(self, admitted: list[tuple[RequestId, int, int]]) -> list[int] | None:
        """Brings in the next group: rows that have known tokens to compute; None where none can come in now."""
        book, limits = self._book, self.config.scheduler
        waiting = None
        if book.off:
            group = book.groups[book.off[0][1]]
            request_id, width = group.request.id, len(group.rows)
        else:
            waiting = self._queue.head(self._now) if self._queue and not book.num_off else None
            if waiting is None:
                return None
            request_id, width = waiting.request.id, waiting.request.num_sequences
        if book.seats + width > limits.max_batch:
            return None
        reserve = self._watermark if book.seats else 0
        free = self.allocator.free_blocks
        if self._refused is not None:
            refused, had, reserved = self._refused
            if refused == request_id and free <= had and reserve >= reserved:
                return None
        running, computed = book.running(), book.computed()
        self.allocator.publish_all(running, computed[running])
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

    def _admit_new(
        self, waiting: Waiting, reserve: int, admitted: list[tuple[RequestId, int, int]]
    ) -> int | None:
        """Gives a new request its rows and its first sequence the frames of the prompt; the first row."""
        book, table, request = self._book, self._book.table, waiting.request
        row = table.take()
        self.allocator.open(row, request.content, request.salt, request.num_prompt)
        if self.allocator.admit_group([(row, request.num_prompt)], 0, reserve) is not Grant.OK:
            self.allocator.close(row)
            table.free(row)
            return None
        self._queue.remove(request.id)
        rows = [row, *(table.take() for _ in range(request.num_sequences - 1))]
        rank = book.rank_of(waiting)
        for index, member in enumerate(rows):
            table.open(member, request.id, index, rank, request.num_prompt, waiting.limit)
            table.state[member] = State.FORMING
            if self._fair:
                table.tenant[member] = self._shares.number(request.tenant)
            admitted.append((request.id, index, member))
        book.groups[request.id] = Group(waiting, rank, rows)
        book.seats += len(rows)
        hits = self.allocator.last_hits
        table.scheduled[row] = hits * self.allocator.block_size
        if request.content is not None:
            self.prefix_queries_tokens += request.num_prompt
            self.prefix_hits_tokens += hits * self.allocator.block_size
        book.record_evictions()
        blocks = tuple(self.allocator.blocks_of(row).tolist())
        book.record(records.Admitted(book.next_step, request.id, row, blocks, hits))
        table.state[row] = State.RUNNING
        book.run(row)
        return row

    def _open_decodes(self, rows: I32) -> Plan:
        """A plan of decodes only: the hot path."""
        book, table, cache = self._book, self._book.table, self._decodes
        starts = table.scheduled[rows]
        table.scheduled[rows] = starts + 1
        if rows is not book.decoding or cache.membership != book.membership:
            cache.fill(rows, table, starts, book.membership if rows is book.decoding else -1)
        finishing = self._take_finishing(rows, starts) if cache.quiet <= 0 else NO_ROWS
        cache.quiet -= 1
        if self._fair:
            self._shares.charge_output(table.tenant[rows], 1)
        return self._open(
            finishing,
            rows=rows,
            requests=cache.requests,
            starts=starts,
            counts=cache.counts,
            samples=cache.samples,
            num_decodes=len(rows),
        )

    def _take_finishing(self, rows: I32, starts: I32) -> I32:
        """Rows whose last token this step samples: they decode no more."""
        finishing = rows[starts + 2 >= self._book.table.limit[rows]]
        self._book.finish_decoding(finishing)
        return finishing

    def _open_mixed(
        self,
        decodes: I32,
        chunks: list[tuple[int, int]],
        admitted: tuple[tuple[RequestId, int, int], ...],
    ) -> Plan:
        """A plan of decodes and prompt chunks."""
        book, table = self._book, self._book.table
        chunk_rows, chunk_counts = np.array(chunks, np.int32).reshape(-1, 2).T
        rows = np.concatenate([decodes, chunk_rows])
        counts = np.concatenate([np.ones(len(decodes), np.int32), chunk_counts])
        starts = table.scheduled[rows]
        ends = starts + counts
        samples = ends >= table.known[rows]
        table.scheduled[rows] = ends
        finishing = [self._take_finishing(decodes, starts[: len(decodes)])]
        self._decodes.membership = -1  # Its count of quiet steps is of decode steps only.
        fork_from: list[int] = []
        fork_rows: list[int] = []
        for at in range(len(decodes), len(rows)):
            if samples[at]:
                row = int(rows[at])
                children = book.form_siblings(row)
                fork_from.extend([at] * len(children))
                fork_rows.extend(children)
                book.prefilling.remove(row)
                done = [r for r in (row, *children) if not book.start_decoding(r)]
                finishing.append(np.array(done, np.int32))
        if self._fair:
            self._charge(rows, starts, ends, samples, fork_rows)
        return self._open(
            np.concatenate(finishing),
            rows=rows,
            requests=table.request[rows],
            starts=starts,
            counts=counts,
            samples=samples,
            num_decodes=len(decodes),
            admitted=admitted,
            fork_from=np.array(fork_from, np.int32),
            fork_rows=np.array(fork_rows, np.int32),
        )

    def _open(
        self,
        finishing: I32,
        *,
        rows: I32,
        requests: I64,
        starts: I32,
        counts: I32,
        samples: Bools,
        num_decodes: int,
        admitted: tuple[tuple[RequestId, int, int], ...] = (),
        fork_from: I32 = NO_ROWS,
        fork_rows: I32 = NO_ROWS,
    ) -> Plan:
        book = self._book
        delta_rows, delta_cols, delta_blocks = self.allocator.take_deltas()
        sources = targets = NO_ROWS
        copies = self.allocator.take_copies()
        if copies:
            sources, targets = np.array(copies, np.int32).T.copy()
        plan = Plan(
            step=book.next_step,
            rows=rows,
            requests=requests,
            starts=starts,
            counts=counts,
            samples=samples,
            num_decodes=num_decodes,
            admitted=admitted,
            fork_from=fork_from,
            fork_rows=fork_rows,
            copy_sources=sources,
            copy_targets=targets,
            delta_rows=delta_rows,
            delta_cols=delta_cols,
            delta_blocks=delta_blocks,
        )
        for column in (
            rows,
            requests,
            starts,
            counts,
            samples,
            delta_rows,
            delta_cols,
            delta_blocks,
        ):
            column.flags.writeable = False
        book.open.append(OpenPlan(plan, finishing))
        book.next_step += 1
        return plan

    def _nothing_planned(self) -> Idle | Blocked:
        book = self._book
        if book.open or self._pressure.num_transfers:
            return Blocked()
        if self._queue or book.groups:
            raise InvariantError("there is work, no plan is open, and nothing can run")
        return Idle()

    # -- fair shares -------------------------------------------------------------------------------------------

    def _charge(
        self, rows: I32, starts: I32, ends: I32, samples: Bools, fork_rows: list[int]
    ) -> None:
        """Charges tenants for prompt positions that were never charged before, and for tokens to be sampled."""
        table = self._book.table
        last = np.minimum(ends, table.prompt[rows])
        fresh = last - np.maximum(starts, table.paid[rows])
        for row, count in zip(rows[fresh > 0].tolist(), fresh[fresh > 0].tolist(), strict=True):
            self._shares.charge_prompt(int(table.tenant[row]), count)
        table.paid[rows] = np.maximum(table.paid[rows], last)
        sampling = np.concatenate([rows[samples], np.array(fork_rows, np.int32)])
        self._shares.charge_output(table.tenant[sampling], 1)

    def _refund(self, rows: I32) -> None:
        """Gives back what the discarded tokens of `rows` cost."""
        if self._fair and len(rows):
            self._shares.charge_output(self._book.table.tenant[rows], -1)

    def _tick(self, now: TimeNs) -> None:
        if now < self._now:
            raise ValueError(f"time went backwards, from {self._now} to {now} ns")
        self._now = now


def _others(rows: I32, gone: set[int]) -> Bools:
    """Which of `rows` are not in `gone`."""
    return np.array([row not in gone for row in rows.tolist()], np.bool_)


class _DecodeCache:
    """Columns of a decode step that stay the same while the same rows decode."""

    def __init__(self) -> None:
        self.membership = -1
        self.requests: I64 = np.zeros(0, np.int64)
        self.counts: I32 = NO_ROWS
        self.samples: Bools = np.zeros(0, np.bool_)
        self.quiet = 0
        """Steps before any of the rows samples its last token."""

    def fill(self, rows: I32, table: RowTable, starts: I32, membership: int) -> None:
        """Takes the columns for `rows`, whose next positions are `starts`."""
        self.membership = membership
        self.requests = table.request[rows]
        self.counts = np.ones(len(rows), np.int32)
        self.samples = np.ones(len(rows), np.bool_)
        self.quiet = int((table.limit[rows] - starts).min()) - 2
