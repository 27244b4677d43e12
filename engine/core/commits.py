"""Commits: takes in what a step computed. Accepts, discards and ends; knows no queue and plans nothing."""

import numpy as np

from engine.core.arrays import I8, I32, I64, Bools, filled
from engine.core.book import NO_ROWS, Book, OpenPlan, Status
from engine.core.ids import RequestId
from engine.core.plan import Finish, Outcome, Plan, Results, StepFailed
from engine.core.policy import Shares
from engine.core.pressure import Pressure
from engine.core.rows import State

_NO_REASONS: I8 = np.zeros(0, np.int8)


_FOUND_OUTSIDE = (Finish.NONE, Finish.STOP, Finish.FAILED)


class Commits:
    """What `Scheduler.commit` does, over the book and its memory."""

    def __init__(self, book: Book, pressure: Pressure, shares: Shares | None) -> None:
        """`shares` where tenants are charged."""
        self._book = book
        self._pressure = pressure
        self._shares = shares

    def check(self, plan: Plan, results: Results | StepFailed) -> None:
        """Raises `ValueError` unless `plan` is the oldest open plan and `results` are of its sampling rows."""
        book = self._book
        if not book.open or plan is not book.open[0].plan:
            raise ValueError("plans commit in the order in which they were made")
        if isinstance(results, StepFailed):
            return
        sampling, stops = plan.sampling, results.stops
        if not (results.rows is sampling or results.rows.tolist() == sampling.tolist()):
            raise ValueError("results must name the plan's sampling rows in plan order")
        if results.tokens.shape != sampling.shape or stops.shape != sampling.shape:
            raise ValueError(f"tokens and stops must have shape {sampling.shape}")
        if np.count_nonzero(stops) and not np.isin(stops, _FOUND_OUTSIDE).all():
            raise ValueError("stops may be NONE, STOP or FAILED; the core finds the others")
        if results.parents is not None:
            _check_parents(book, sampling, results.parents)

    def commit(self, plan: Plan, results: Results | StepFailed) -> Outcome:
        """Takes in what the oldest open plan computed; `check` has passed."""
        book = self._book
        entry = book.open.popleft()
        if len(plan.copy_sources):
            self._book.memory.copied(plan.copy_sources.tolist())
        if isinstance(results, StepFailed):
            outcome = self._fail(entry)
        else:
            outcome = self._accept(entry, results.rows, results)
        if entry.gone:
            self._settle(entry)
        return outcome

    def _accept(self, entry: OpenPlan, sampling: I32, results: Results) -> Outcome:
        """Takes in tokens, and ends the sequences that stop, fail or are full."""
        plan, book, tokens = entry.plan, self._book, results.tokens
        plain = not (entry.gone or len(plan.fork_rows) or book.memory.keeps_tokens)
        if plain and results.parents is None and not np.count_nonzero(results.stops):
            return self._accept_all(entry, sampling, tokens)
        rows, stops, positions = sampling, results.stops, plan.sampled_positions
        if entry.gone:
            heard = _others(rows, entry.gone)
            self._refund(rows[~heard])
            self._distrust(plan.step, rows[~heard & (stops == Finish.FAILED)])
            rows, stops, positions, tokens = (
                rows[heard],
                stops[heard],
                positions[heard],
                tokens[heard],
            )
        ended, reasons = NO_ROWS, stops[:0]
        if stops.any() or len(entry.finishing):
            good = stops != Finish.FAILED
            self._refund(rows[~good])
            full = np.isin(rows, entry.finishing)
            reasons = np.where(full & (stops == 0), Finish.LENGTH, stops).astype(np.int8)
            ends = reasons != Finish.NONE
            ended, reasons = rows[ends], reasons[ends]
            rows, positions, tokens = rows[good], positions[good], tokens[good]
        if results.parents is not None:
            self._move(plan.step, rows, sampling, results.parents)
        if len(rows):
            self._book.memory.accept(rows, positions, tokens)
        if rows is plan.rows:
            return self._outcome(plan, rows, plan.requests, tokens, plan.counts, ended, reasons)
        counts = filled(len(rows), 1)
        requests = book.table.request[rows]
        return self._outcome(plan, rows, requests, tokens, counts, ended, reasons)

    def _move(self, step: int, accepted: I32, sampling: I32, parents: I32) -> None:
        """Hypotheses whose results are accepted go on with their parents' histories, one beam after the other."""
        requests = self._book.table.request[sampling].tolist()
        kept = set(accepted.tolist())
        beams: dict[int, list[tuple[int, int]]] = {}
        for request, row, parent in zip(requests, sampling.tolist(), parents.tolist(), strict=True):
            if row != parent and row in kept:
                beams.setdefault(request, []).append((row, parent))
        for moves in beams.values():
            self._book.move(step, [row for row, _ in moves], [parent for _, parent in moves])

    def _accept_all(self, entry: OpenPlan, rows: I32, tokens: I32) -> Outcome:
        """Takes in a step that every row wanted, where nobody keeps tokens: rows that are full end, the others go on."""
        plan = entry.plan
        if rows is plan.rows:
            requests, counts = plan.requests, plan.counts
        else:
            requests, counts = self._book.table.request.take(rows), filled(len(rows), 1)
        ended = entry.finishing
        reasons = np.full(len(ended), Finish.LENGTH, np.int8) if len(ended) else _NO_REASONS
        return self._outcome(plan, rows, requests, tokens, counts, ended, reasons)

    def _fail(self, entry: OpenPlan) -> Outcome:
        """Ends every request that the plan names and that still runs. What it computed, for whomever, is not to be trusted."""
        plan, book = entry.plan, self._book
        rows = np.concatenate([plan.rows, plan.fork_rows])
        self._distrust(plan.step, rows)
        ended: list[int] = []
        for request_id in dict.fromkeys(book.table.request[rows].tolist()):
            group = book.groups.get(RequestId(request_id))
            if group is not None and group.status is Status.RUNNING:
                ended.extend(r for r in group.rows if book.table.state[r] == State.RUNNING)
        self._refund(plan.sampling)
        reasons = np.full(len(ended), Finish.FAILED, np.int8)
        nothing = np.zeros(0, np.int64)
        return self._outcome(
            plan, NO_ROWS, nothing, NO_ROWS, NO_ROWS, np.array(ended, np.int32), reasons
        )

    def _distrust(self, step: int, rows: I32) -> None:
        """What a failed step computed for `rows`, running or not, is neither published nor swapped."""
        book = self._book
        for row in rows.tolist():
            book.memory.silence(row)
            group = book.groups.get(RequestId(int(book.table.request[row])))
            if group is not None and group.status is Status.LEAVING:
                self._pressure.recompute_instead(step, group)

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
            book = self._book
            ended_requests = book.table.request.take(ended)
            for row, request, reason in zip(
                ended.tolist(), ended_requests.tolist(), reasons.tolist(), strict=True
            ):
                if reason == Finish.FAILED:
                    book.memory.silence(row)
                if book.end_sequence(plan.step, row, Finish(reason)):
                    closed.append(RequestId(request))
            ended.setflags(write=False)
            ended_requests.setflags(write=False)
            reasons.setflags(write=False)
        tokens.setflags(write=False)
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
                book.give_back(entry.plan.step, row)
            elif table.state[row] == State.OFF:
                group = book.groups[RequestId(int(table.request[row]))]
                if group.status is Status.LEAVING and not any(map(book.named, group.rows)):
                    self._pressure.leave(entry.plan.step, group)

    def _refund(self, rows: I32) -> None:
        """Gives back what the discarded tokens of `rows` cost."""
        if self._shares is not None and len(rows):
            self._shares.charge_output(self._book.table.tenant[rows], -1)


def _check_parents(book: Book, sampling: I32, parents: I32) -> None:
    requests = book.table.request
    for row, parent in zip(sampling.tolist(), parents.tolist(), strict=True):
        if row == parent:
            continue
        if requests[row] != requests[parent] or parent not in sampling:
            raise ValueError(
                f"row {parent} cannot be the parent of row {row}: not of its beam, or not in the plan"
            )
        group = book.groups.get(RequestId(int(requests[row])))
        if group is not None and not group.request.beam:
            raise ValueError(f"row {row} is no hypothesis of a beam search")


def _others(rows: I32, gone: set[int]) -> Bools:
    """Which of `rows` are not in `gone`."""
    if not gone:
        return np.ones(len(rows), np.bool_)
    return np.array([row not in gone for row in rows.tolist()], np.bool_)
