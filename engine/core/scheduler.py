"""The scheduler: which rows compute what in the next step, who gets frames, and who gives way. A pager without a clock.

Knows requests, rows and memory through `Allocator`; knows no tokens' meaning, no text, no device, no time of its own.

Order of one step: every running decode, oldest first, then prompt chunks of running rows, then admissions (preempted
work before new requests), all inside the token budget. A row names at most two open plans; what ends or is preempted
while a plan names it keeps its frames until the last such plan commits, and its later results are discarded.

Progress: the oldest running row is never a victim, and a request whose tokens cannot fit in the empty pool is rejected
at submission, so the oldest always finishes.
"""

from bisect import insort
from collections import OrderedDict, deque

import numpy as np

from engine.core import log as records
from engine.core.allocator import Allocator, Grant
from engine.core.config import CoreConfig
from engine.core.errors import InvariantError
from engine.core.ids import RequestId, TimeNs
from engine.core.memory import BlockManager
from engine.core.plan import (
    I8,
    I32,
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
)
from engine.core.policy import insert_by_arrival, youngest_victim
from engine.core.rows import RowTable, State

_NO_ROWS: I32 = np.zeros(0, np.int32)


class Scheduler:
    """The contract of DESIGN section 4: `submit`, `abort`, `schedule`, `commit`, `memory`.

    Every method checks first and then changes: on any exception the state is as it was.
    """

    def __init__(self, config: CoreConfig, memory: Allocator | None = None) -> None:
        self.config = config
        self.log: list[records.Record] = []
        self.allocator: Allocator = memory or BlockManager(config.memory)
        self.num_preemptions = 0
        self._watermark = int(config.memory.watermark * config.memory.num_blocks)
        self._table = RowTable()
        self._waiting: OrderedDict[RequestId, tuple[Request, int]] = OrderedDict()
        self._row_of: dict[RequestId, int] = {}
        self._decoding = _NO_ROWS
        self._prefilling: list[int] = []
        self._preempted: list[tuple[int, int]] = []
        """(arrival, row) of rows whose frames are back and that wait to resume."""
        self._open: deque[Plan] = deque()
        self._next_step = 0
        self._next_arrival = 0
        self._now = TimeNs(0)

    # -- requests ----------------------------------------------------------------------------------------------

    def submit(self, request: Request, now: TimeNs) -> Rejected | None:
        """Queues `request`, or says why it can never run; a rejected request leaves no trace.

        Raises:
            ValueError: the id is in use, or time went backwards.
        """
        self._tick(now)
        if request.id in self._row_of or request.id in self._waiting:
            raise ValueError(f"request {request.id} is already here")
        answer = self._limit_of(request)
        if isinstance(answer, Rejected):
            return answer
        self._waiting[request.id] = (request, self._next_arrival)
        self._next_arrival += 1
        return None

    def _limit_of(self, request: Request) -> int | Rejected:
        """Tokens, prompt and output, at which the request ends."""
        prompt, context = request.num_prompt, self.config.scheduler.max_context
        pool = self.config.memory.num_blocks * self.config.memory.block_size
        if prompt < 1:
            return Rejected("empty_prompt", "the prompt has no tokens; send at least one")
        if request.max_tokens is not None and request.max_tokens < 1:
            return Rejected("bad_max_tokens", "max_tokens must be at least 1")
        most = request.max_tokens or 1
        if prompt + most > context:
            return Rejected(
                "context_exceeded",
                f"the prompt has {prompt} tokens and asks for {most} more, but the context holds {context}",
            )
        # The last token is never fed back, so it takes no position.
        if not self.allocator.could_hold(prompt + most - 1):
            return Rejected(
                "pool_exceeded",
                f"the prompt has {prompt} tokens and asks for {most} more, but the KV pool holds {pool}",
            )
        return prompt + most if request.max_tokens is not None else min(context, pool + 1)

    def abort(self, request_id: RequestId, now: TimeNs) -> bool:
        """Ends the request in whatever state it is; True where this call ended it, False where it was over or unknown."""
        self._tick(now)
        if request_id in self._waiting:
            del self._waiting[request_id]
            self._record(records.Ended(self._next_step, request_id, Finish.ABORTED))
            return True
        row = self._row_of.get(request_id)
        if row is None:
            return False
        self._end(self._next_step, row, Finish.ABORTED)
        return True

    # -- steps -------------------------------------------------------------------------------------------------

    def schedule(self, now: TimeNs) -> Plan | Idle | Blocked:
        """The next step. `Blocked` where only a commit can make room or finish what is left, `Idle` where nothing is left."""
        self._tick(now)
        if len(self._open) >= self.config.scheduler.max_open_plans:
            return Blocked()
        step = self._next_step
        decodes, contended = self._plan_decodes(step)
        budget = self.config.scheduler.token_budget - len(decodes)
        chunks = self._plan_chunks(budget)
        budget -= sum(count for _, count in chunks)
        admitted: list[tuple[RequestId, int]] = []
        while budget > 0 and not contended:
            row = self._admit_next(step, admitted)
            if row is None:
                break
            count = min(budget, int(self._table.length[row]))
            chunks.append((row, count))
            budget -= count
        if not len(decodes) and not chunks:
            return self._nothing_planned()
        chunk_rows, chunk_counts = np.array(chunks, np.int32).reshape(-1, 2).T
        rows = np.concatenate([decodes, chunk_rows])
        counts = np.concatenate([np.ones(len(decodes), np.int32), chunk_counts])
        return self._open_plan(
            len(decodes), rows, self._table.scheduled[rows], counts, tuple(admitted)
        )

    def commit(self, plan: Plan, results: Results | StepFailed, now: TimeNs) -> Outcome:
        """Takes in what the oldest open plan computed.

        Raises:
            ValueError: `plan` is not the oldest open plan, or `results` are not for its sampling rows.
        """
        self._tick(now)
        if not self._open or plan is not self._open[0]:
            raise ValueError("plans commit in the order in which they were made")
        sampling = plan.rows[plan.samples]
        if isinstance(results, Results) and not np.array_equal(results.rows, sampling):
            raise ValueError("results must name the plan's sampling rows in plan order")
        self._open.popleft()
        table = self._table
        table.plans[plan.rows] -= 1
        live = table.state[plan.rows] == State.RUNNING
        if isinstance(results, StepFailed):
            over = plan.rows[live]
            outcome = self._outcome(
                plan, _NO_ROWS, _NO_ROWS, over, np.full(len(over), Finish.FAILED, np.int8)
            )
        else:
            table.computed[plan.rows[live]] = (plan.starts + plan.counts)[live]
            heard = live[plan.samples]
            good = heard & (results.stops != Finish.FAILED)
            rows = sampling[good]
            table.generated[rows] += 1
            full = table.prompt[sampling] + table.generated[sampling] >= table.limit[sampling]
            reasons = np.where(good & full & (results.stops == 0), Finish.LENGTH, results.stops)
            ends = heard & (reasons != Finish.NONE)
            outcome = self._outcome(
                plan, rows, results.tokens[good], sampling[ends], reasons[ends].astype(np.int8)
            )
        self._settle(plan.step, plan.rows)
        return outcome

    # -- looking -----------------------------------------------------------------------------------------------

    def memory(self) -> MemoryReport:
        """The pool and the queues at this moment. O(rows)."""
        table = self._table
        return self.allocator.report(
            int(table.computed.sum()),
            len(self._decoding) + len(self._prefilling),
            len(self._waiting) + int((table.state == State.PREEMPTED).sum()),
        )

    def check_invariants(self) -> None:
        """Raises `InvariantError` where memory or rows break a stated invariant. O(frames + rows)."""
        self.allocator.check_invariants()
        table, size = self._table, self.allocator.block_size
        named = np.zeros(len(table.plans), np.int32)
        for plan in self._open:
            named[plan.rows] += 1
        if (named != table.plans).any():
            raise InvariantError("rows and open plans disagree")
        if not np.array_equal(
            np.sort(self._running()), np.flatnonzero(table.state == State.RUNNING)
        ):
            raise InvariantError("the running lists and the rows' states disagree")
        for row in range(len(table.state)):
            held, state = self.allocator.held_by(row), table.state[row]
            if state == State.RUNNING:
                computed, scheduled = table.computed[row], table.scheduled[row]
                length, limit = table.length[row], table.limit[row]
                if not 0 <= computed <= scheduled < length <= limit:
                    raise InvariantError(f"row {row} has its positions out of order")
                if not scheduled <= held * size < length + size:
                    raise InvariantError(f"row {row} has {held} blocks for {length} tokens")
            elif held and not table.plans[row]:
                raise InvariantError(
                    f"row {row} holds blocks and neither runs nor is in an open plan"
                )
        if not table.state.any() and self.allocator.free_blocks != self.allocator.total_blocks:
            raise InvariantError("blocks are held though no sequence is left")

    # -- planning ----------------------------------------------------------------------------------------------

    def _plan_decodes(self, step: int) -> tuple[I32, bool]:
        """Rows that decode in this step, oldest first, with room for their token; whether memory ran short."""
        table = self._table
        ready = self._decoding[table.length[self._decoding] < table.limit[self._decoding]]
        short = ready[self.allocator.short(ready, table.length[ready])]
        if not len(short):
            return ready, False
        blocks = self.allocator.grow(short)
        if blocks is not None:
            self._record(records.Grew(step, tuple(short.tolist()), tuple(blocks.tolist())))
            return ready, False
        stalled = self._grow_under_pressure(step, short.tolist())
        going = (table.state[ready] == State.RUNNING) & ~np.isin(ready, stalled)
        return ready[going], True

    def _grow_under_pressure(self, step: int, short: list[int]) -> list[int]:
        """Makes room for one block for each of `short`, oldest first; those that must sit out this step.

        Frames that come back when an open plan commits are counted before anyone is preempted for more.
        """
        table, stalled = self._table, []
        leaving = np.flatnonzero((table.plans > 0) & (table.state > State.RUNNING))
        returning = sum(self.allocator.held_by(int(row)) for row in leaving)
        for row in short:
            while table.state[row] == State.RUNNING:
                blocks = self.allocator.grow(np.array([row], np.int32))
                if blocks is not None:
                    self._record(records.Grew(step, (row,), (int(blocks[0]),)))
                    break
                victim = youngest_victim(table, self._running(), row) if not returning else None
                if victim is None:
                    returning -= returning > 0
                    stalled.append(row)
                    break
                returning += self._preempt(step, victim)
        return stalled

    def _plan_chunks(self, budget: int) -> list[tuple[int, int]]:
        """(row, positions) of running prompts, oldest first, inside `budget`."""
        chunks = []
        for row in self._prefilling:
            count = min(budget, int(self._table.length[row] - self._table.scheduled[row]))
            if count > 0:
                chunks.append((row, count))
                budget -= count
        return chunks

    def _admit_next(self, step: int, admitted: list[tuple[RequestId, int]]) -> int | None:
        """Resumes the oldest preempted row or else admits the oldest waiting request, if it fits now; its row."""
        table = self._table
        num_running = len(self._decoding) + len(self._prefilling)
        if num_running >= self.config.scheduler.max_batch:
            return None
        reserve = self._watermark if num_running else 0
        if self._preempted:
            arrival, row = self._preempted[0]
            tokens = int(table.prompt[row] + table.generated[row])
            if self.allocator.admit(row, tokens, reserve) is not Grant.OK:
                return None
            del self._preempted[0]
            table.floor[row] = table.generated[row]
        elif self._waiting and not (table.state == State.PREEMPTED).any():
            request, arrival = next(iter(self._waiting.values()))
            row = table.take()
            if self.allocator.admit(row, request.num_prompt, reserve) is not Grant.OK:
                table.free(row)
                return None
            del self._waiting[request.id]
            limit = self._limit_of(request)
            assert isinstance(limit, int)
            self._row_of[request.id] = row
            table.open(row, request.id, arrival, request.num_prompt, limit)
            tokens = request.num_prompt
            admitted.append((request.id, row))
        else:
            return None
        table.state[row] = State.RUNNING
        table.length[row] = tokens
        insort(self._prefilling, row, key=lambda other: table.arrival[other])
        blocks = tuple(self.allocator.blocks_of(row).tolist())
        self._record(records.Admitted(step, int(table.request[row]), row, blocks))
        return row

    def _open_plan(
        self,
        num_decodes: int,
        rows: I32,
        starts: I32,
        counts: I32,
        admitted: tuple[tuple[RequestId, int], ...],
    ) -> Plan:
        """Declares the step: its positions are scheduled, and its sampled tokens promised."""
        table = self._table
        ends = starts + counts
        samples = ends == table.length[rows]
        table.scheduled[rows] = ends
        table.length[rows] += samples
        table.plans[rows] += 1
        for row in rows[num_decodes:][samples[num_decodes:]].tolist():
            self._prefilling.remove(row)
            self._decoding = insert_by_arrival(table, self._decoding, row)
        delta_rows, delta_cols, delta_blocks = self.allocator.take_deltas()
        requests = table.request[rows]
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
        plan = Plan(
            step=self._next_step,
            rows=rows,
            requests=requests,
            starts=starts,
            counts=counts,
            samples=samples,
            num_decodes=num_decodes,
            admitted=admitted,
            delta_rows=delta_rows,
            delta_cols=delta_cols,
            delta_blocks=delta_blocks,
        )
        self._open.append(plan)
        self._next_step += 1
        return plan

    def _nothing_planned(self) -> Idle | Blocked:
        if self._open:
            return Blocked()
        if self._waiting or self._table.state.any():
            raise InvariantError("there is work, no plan is open, and nothing can run")
        return Idle()

    # -- changes of state --------------------------------------------------------------------------------------

    def _running(self) -> I32:
        """Running rows, oldest first."""
        rows = np.concatenate([self._decoding, np.array(self._prefilling, np.int32)])
        return rows[np.argsort(self._table.arrival[rows], kind="stable")]

    def _stop_running(self, row: int) -> None:
        if row in self._prefilling:
            self._prefilling.remove(row)
        else:
            self._decoding = self._decoding[self._decoding != row]

    def _preempt(self, step: int, row: int) -> int:
        """Takes `row` off; frames that come back only with the commit of an open plan."""
        table = self._table
        self.num_preemptions += 1
        self._stop_running(row)
        table.state[row] = State.PREEMPTED
        tokens = int(table.prompt[row] + table.generated[row])
        self._record(records.Preempted(step, int(table.request[row]), row, tokens))
        if table.plans[row]:
            return self.allocator.held_by(row)
        self._give_back(step, row)
        return 0

    def _end(self, step: int, row: int, reason: Finish) -> None:
        """Ends the request of `row`; its frames come back now, or with the last open plan that names it."""
        table = self._table
        if table.state[row] == State.RUNNING:
            self._stop_running(row)
        elif not table.plans[row]:
            self._preempted.remove((int(table.arrival[row]), row))
        request_id = RequestId(int(table.request[row]))
        del self._row_of[request_id]
        table.state[row] = State.ENDED
        self._record(records.Ended(step, request_id, reason))
        if not table.plans[row]:
            self._give_back(step, row)

    def _settle(self, step: int, rows: I32) -> None:
        """Takes the frames of rows that are off and that no open plan names any more."""
        table = self._table
        leaving = rows[(table.plans[rows] == 0) & (table.state[rows] > State.RUNNING)]
        for row in leaving.tolist():
            self._give_back(step, row)

    def _give_back(self, step: int, row: int) -> None:
        """Frees the frames of a row that is off; then a preempted row waits to resume, an ended one is reused."""
        table = self._table
        held = self.allocator.release(row)
        if held:
            self._record(records.Released(step, row, held))
        if table.state[row] == State.ENDED:
            table.free(row)
            return
        table.computed[row] = 0
        table.scheduled[row] = 0
        insort(self._preempted, (int(table.arrival[row]), row))

    def _outcome(self, plan: Plan, rows: I32, tokens: I32, over: I32, reasons: I8) -> Outcome:
        """Ends the rows `over` and reports the commit."""
        requests, ended = self._table.request[rows], self._table.request[over]
        for row, reason in zip(over.tolist(), reasons.tolist(), strict=True):
            self._end(plan.step, row, Finish(reason))
        for column in (rows, requests, tokens, ended, reasons):
            column.flags.writeable = False
        return Outcome(
            step=plan.step,
            rows=rows,
            requests=requests,
            tokens=tokens,
            ended=ended,
            reasons=reasons,
        )

    def _tick(self, now: TimeNs) -> None:
        if now < self._now:
            raise ValueError(f"time went backwards, from {self._now} to {now} ns")
        self._now = now

    def _record(self, record: records.Record) -> None:
        if self.config.scheduler.log:
            self.log.append(record)
