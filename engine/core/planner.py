"""Planner: the step that is next. Decodes by rank, then prompt chunks, then admissions, all inside the token budget.

Opens plans on the book; knows no requests that wait and no results.
"""

import numpy as np

from engine.core import log as records
from engine.core.admission import Admission
from engine.core.arrays import I32, I64, ONE, Bools, Index, filled, ones
from engine.core.book import NO_ROWS, Book, OpenPlan
from engine.core.config import SchedulerConfig
from engine.core.ids import RequestId, TimeNs
from engine.core.plan import NO_ENTRIES, Plan
from engine.core.policy import Shares
from engine.core.pressure import Pressure
from engine.core.rows import RowTable, State


class Planner:
    """Makes plans, over a `Book`."""

    def __init__(
        self,
        config: SchedulerConfig,
        book: Book,
        pressure: Pressure,
        admission: Admission,
        shares: Shares | None,
    ) -> None:
        """`shares` where tenants are charged."""
        self._config = config
        self._book = book
        self._pressure = pressure
        self._admission = admission
        self._shares = shares
        self._decodes = _DecodeCache()

    def plan(self, now: TimeNs) -> Plan | None:
        """The next step, opened; None where there is nothing that could run now."""
        book = self._book
        decodes, contended = self._plan_decodes()
        members = book.membership
        if not book.prefilling and (contended or not self._admission.has_work):
            return self._open_decodes(decodes) if len(decodes) else None
        budget = self._config.token_budget - len(decodes)
        chunks = self._plan_chunks(budget)
        admitted: tuple[tuple[RequestId, int, int], ...] = ()
        if not contended:
            budget -= sum(count for _, count in chunks)
            admitted = self._admission.admit(chunks, budget, now)
        if chunks:
            return self._open_mixed(decodes, chunks, admitted)
        if len(decodes):
            return self._open_decodes(decodes)
        # Hypotheses that came back with everything computed decode at once.
        return self.plan(now) if book.membership != members else None

    def passed(self, steps: int) -> None:
        """So many steps of decodes were taken without a plan."""
        self._decodes.quiet -= steps

    def open_ahead(self, rows: Index, starts: I32, finishing: I32) -> None:
        """Opens a step of decodes whose rows, frames and ends are settled: `finishing` of them decode no more."""
        book, cache = self._book, self._decodes
        if rows is not book.decoding or cache.membership != book.membership:
            cache.fill(rows, book.table, starts, book.membership if rows is book.decoding else -1)
        cache.quiet -= 1
        self._open(
            finishing,
            rows=cache.rows,
            requests=cache.requests,
            starts=starts,
            counts=cache.counts,
            samples=cache.samples,
            num_decodes=len(rows),
        )

    def open_again(self, plan: Plan, times: int, finishing: I32) -> None:
        """Opens `plan` once more, every row so many times its count further."""
        self._open(
            finishing,
            rows=plan.rows,
            requests=plan.requests,
            starts=plan.starts + times * plan.counts,
            counts=plan.counts,
            samples=plan.samples,
            num_decodes=plan.num_decodes,
        )

    def _plan_decodes(self) -> tuple[Index, bool]:
        """Rows that decode in this step, by rank, with room for their token; whether memory ran short."""
        book, table = self._book, self._book.table
        rows = book.decoding
        if book.dependent:
            rows = rows[~np.isin(rows, book.held_back())]
        if not len(rows):
            return rows, False
        if not book.shared_tails:
            lacking = self._book.memory.short(rows, table.scheduled[rows] + ONE)
            if not len(lacking):
                return rows, False
            short = rows[lacking]
            blocks = self._book.memory.grow(short)
            if blocks is not None:
                book.record_evictions()
                if book.keeps_log:
                    grown = tuple(short.tolist()), tuple(blocks.tolist())
                    book.record(records.Grew(book.next_step, *grown))
                return rows, False
        else:
            lacking = self._book.memory.short(rows, table.scheduled[rows] + 1)
            tails = np.flatnonzero(np.isin(rows, list(book.shared_tails)))
            short = rows[np.union1d(lacking, tails)]
        if not len(short):
            return rows, False
        before = book.num_off
        stalled = self._pressure.make_room(short)
        for request in sorted({int(table.request[row]) for row in book.dependent & stalled}):
            members = book.groups[RequestId(request)].rows
            stalled.update(members)
            # No plan names them, so none may carry their copies: it could fail, or they could leave before it has run.
            self._pressure.take_back_copies(members)
            book.shared_tails.update(members)
        if not stalled and book.num_off == before:
            return rows, False
        off = table.state[rows] != State.RUNNING
        return rows[~off & ~np.isin(rows, list(stalled))], True

    def _plan_chunks(self, budget: int) -> list[tuple[int, int]]:
        """(row, positions) of running prompts, by rank, inside `budget`."""
        table, chunks = self._book.table, []
        partial = 0
        most = self._config.max_partial_prefills
        for row in self._book.prefilling:
            if budget <= 0 or (most is not None and partial >= most):
                break
            group = self._book.groups[RequestId(int(table.request[row]))]
            first = group.rows[0]
            if row != first and table.scheduled[first] < group.shared:
                continue
            left = int(table.target[row] - table.scheduled[row])
            count = min(budget, left)
            chunks.append((row, count))
            budget -= count
            partial += count < left
        return chunks

    def _open_decodes(self, rows: Index) -> Plan:
        """A plan of decodes only: the hot path."""
        book, table, cache = self._book, self._book.table, self._decodes
        starts = table.scheduled[rows]
        table.scheduled[rows] = starts + ONE
        if rows is not book.decoding or cache.membership != book.membership:
            cache.fill(rows, table, starts, book.membership if rows is book.decoding else -1)
        finishing = self._take_finishing(rows, starts) if cache.quiet <= 0 else NO_ROWS
        cache.quiet -= 1
        if self._shares is not None:
            self._shares.charge_output(table.tenant[rows], 1)
        return self._open(
            finishing,
            rows=cache.rows,
            requests=cache.requests,
            starts=starts,
            counts=cache.counts,
            samples=cache.samples,
            num_decodes=len(rows),
        )

    def _take_finishing(self, rows: Index, starts: I32) -> I32:
        """Rows whose last token this step samples: they decode no more."""
        book = self._book
        last = starts + 2 >= book.table.limit[rows]
        if not np.count_nonzero(last):
            return NO_ROWS
        finishing = rows[last].astype(np.int32)
        others = rows[~last]
        if rows is not book.decoding:
            others = book.decoding[~np.isin(book.decoding, finishing)]
        book.finish_decoding(finishing, others)
        return finishing

    def _open_mixed(
        self,
        decodes: Index,
        chunks: list[tuple[int, int]],
        admitted: tuple[tuple[RequestId, int, int], ...],
    ) -> Plan:
        """A plan of decodes and prompt chunks."""
        book, table = self._book, self._book.table
        num_decodes = len(decodes)
        rows: Index = np.empty(num_decodes + len(chunks), np.intp)
        counts = filled(len(rows), 1)
        rows[:num_decodes] = decodes
        for at, (row, count) in enumerate(chunks, num_decodes):
            rows[at] = row
            counts[at] = count
        starts = table.scheduled[rows]
        ends = starts + counts
        samples = ends >= table.known[rows]
        table.scheduled[rows] = ends
        finishing: list[int] = []
        if num_decodes:
            finishing = self._take_finishing(decodes, starts[:num_decodes]).tolist()
        self._decodes.membership = -1  # Its count of quiet steps is of decode steps only.
        fork_from: list[int] = []
        fork_rows: list[int] = []
        for at, (row, _) in enumerate(chunks, num_decodes):
            if ends[at] == table.target[row]:
                children = book.form_siblings(row) if samples[at] else []
                fork_from.extend([at] * len(children))
                fork_rows.extend(children)
                book.prefilling.remove(row)
                finishing.extend(r for r in (row, *children) if not book.start_decoding(r))
        if self._shares is not None:
            self._charge(self._shares, rows, starts, ends, samples, fork_rows)
        return self._open(
            np.array(finishing, np.int32) if finishing else NO_ROWS,
            rows=rows.astype(np.int32),
            requests=table.request[rows],
            starts=starts,
            counts=counts,
            samples=samples,
            num_decodes=num_decodes,
            admitted=admitted,
            fork_from=np.array(fork_from, np.int32) if fork_from else NO_ENTRIES,
            fork_rows=np.array(fork_rows, np.int32) if fork_rows else NO_ENTRIES,
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
        fork_from: I32 = NO_ENTRIES,
        fork_rows: I32 = NO_ENTRIES,
    ) -> Plan:
        book = self._book
        delta_rows, delta_cols, delta_blocks = self._book.memory.take_deltas()
        sources = targets = NO_ENTRIES
        moved, parents = book.take_moves() if book.moves else (NO_ENTRIES, NO_ENTRIES)
        copies = self._book.memory.take_copies()
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
            move_rows=moved,
            move_parents=parents,
            delta_rows=delta_rows,
            delta_cols=delta_cols,
            delta_blocks=delta_blocks,
        )
        starts.setflags(write=False)
        if num_decodes < len(rows):
            for column in (rows, requests, counts, samples):
                column.setflags(write=False)
        if len(delta_rows):
            for column in (delta_rows, delta_cols, delta_blocks):
                column.setflags(write=False)
        book.open.append(OpenPlan(plan, finishing))
        book.next_step += 1
        return plan

    def _charge(
        self,
        shares: Shares,
        rows: Index,
        starts: I32,
        ends: I32,
        samples: Bools,
        fork_rows: list[int],
    ) -> None:
        """Charges tenants for prompt positions that were never charged before, and for tokens to be sampled."""
        table = self._book.table
        last = np.minimum(ends, table.prompt[rows])
        fresh = last - np.maximum(starts, table.paid[rows])
        for row, count in zip(rows[fresh > 0].tolist(), fresh[fresh > 0].tolist(), strict=True):
            shares.charge_prompt(int(table.tenant[row]), count)
        table.paid[rows] = np.maximum(table.paid[rows], last)
        sampling = np.concatenate([rows[samples], np.array(fork_rows, np.int32)])
        shares.charge_output(table.tenant[sampling], 1)


class _DecodeCache:
    """Columns of a decode step that stay the same while the same rows decode."""

    def __init__(self) -> None:
        self.membership = -1
        self.rows: I32 = NO_ROWS
        self.requests: I64 = np.zeros(0, np.int64)
        self.counts: I32 = NO_ROWS
        self.samples: Bools = np.zeros(0, np.bool_)
        self.quiet = 0
        """Steps before any of the rows samples its last token."""

    def fill(self, rows: Index, table: RowTable, starts: I32, membership: int) -> None:
        """Takes the columns for `rows`, whose next positions are `starts`."""
        self.membership = membership
        self.rows = rows.astype(np.int32)
        self.requests = table.request[rows]
        self.counts, self.samples = ones(len(rows))
        self.quiet = min((table.limit[rows] - starts).tolist()) - 2
        self.rows.setflags(write=False)
        self.requests.setflags(write=False)
