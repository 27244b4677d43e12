"""ScriptedExecutor: a stand-in model that answers from a script and checks every plan like a stern machine.

For tests, and for measuring everything around the model. Its KV cache holds a stamp a slot, which stands for the salt and all tokens
up to that position: a step that reads a slot which holds anything but its own sequence's prefix stops the engine, so sharing is
allowed exactly where it is sound, and a mistake in block management cannot hide. Knows plans, block tables and scripted tokens;
knows no text, no queues and no clients.
"""

import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.core.arrays import I32
from engine.core.errors import ExecutorError, InvariantError
from engine.core.ids import NO_BLOCK
from engine.core.plan import Plan
from engine.executor import NewSequence, Sampled, TokenLogprobs
from engine.script import mix, scripted_tokens, seed_of

Answer = Callable[[NDArray[np.int32]], Sequence[int]]
"""Prompt to the tokens that continue it; after their end `end_token` follows for ever."""


class ScriptedExecutor:
    """An `Executor` without a model. Tokens are a pure function of (prompt, index, position), so recomputing repeats them."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int = 16,
        host_blocks: int = 0,
        max_context: int = 4096,
        vocab_size: int = 256,
        answer: Answer | None = None,
        end_token: int = 0,
        pace: Callable[[Plan], None] | None = None,
        step_fault: Callable[[Plan], BaseException | None] | None = None,
        row_fault: Callable[[int, int], str | None] | None = None,
        move_pace: Callable[[bool], None] | None = None,
        move_fault: Callable[[int], ExecutorError | None] | None = None,
        verify: bool = True,
    ) -> None:
        """Sets up an empty cache.

        Args:
            num_blocks: frames of the pool.
            block_size: positions in a frame.
            host_blocks: blocks to swap to.
            max_context: most positions of one sequence.
            vocab_size: tokens are drawn from 0 to this, exclusive.
            answer: what to say; without it tokens are drawn pseudo-randomly from 1 to `vocab_size` - 1.
            end_token: what follows an answer's last token.
            pace: called in the worker thread during each step: sleep there, advance a virtual clock, or wait to be let go.
            step_fault: an error to raise instead of computing this plan; `ExecutorError` fails the step only.
            row_fault: (request, position of the token to sample) to the message of a failure of that row alone.
            move_pace: called in the copying thread during each transfer, with whether it goes out.
            move_fault: an error to raise instead of finishing the transfer of this number, counted from 0.
            verify: check the stamps; off, a step costs no time that grows with the context.
        """
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.host_blocks = host_blocks
        self.max_context = max_context
        self.vocab_size = vocab_size
        self.num_steps = 0
        self.num_moves = 0
        self.closed = False
        self._answer = answer
        self._end_token = end_token
        self._pace = pace
        self._step_fault = step_fault
        self._row_fault = row_fault
        self._move_pace = move_pace
        self._move_fault = move_fault
        self._verify = verify
        self._columns = -(-max_context // block_size)
        self._tables: I32 = np.full((0, self._columns), NO_BLOCK, np.int32)
        self._request = np.full(0, -1, np.int64)
        self._prompt: I32 = np.zeros(0, np.int32)
        self._known: I32 = np.zeros(0, np.int32)
        self._next: I32 = np.zeros(0, np.int32)
        """By row: the position that comes next, or -1 where it may go back, its table being new."""
        self._seed = np.zeros(0, np.uint64)
        self._logprobs: dict[int, int] = {}
        self._broken = np.zeros(0, np.bool_)
        self._answers: dict[int, NDArray[np.int32]] = {}
        self._stamps: NDArray[np.uint64] = np.zeros((0, max_context), np.uint64)
        """[rows, positions] what the slot of each known position of a row must hold."""
        self._slots: NDArray[np.uint64] = np.zeros(num_blocks * block_size, np.uint64)
        self._frames = self._slots.reshape(num_blocks, block_size)
        self._hosts: NDArray[np.uint64] = np.zeros((host_blocks, block_size), np.uint64)

    def execute(self, plan: Plan, new: Sequence[NewSequence]) -> Sampled:
        """Takes in `new` and the table deltas, checks and stamps the plan's positions, answers from the script.

        Raises:
            ExecutorError: as injected by `step_fault`.
            InvariantError: the plan breaks the contract, or would read a slot that is not its own.
        """
        if plan.step != self.num_steps:
            raise InvariantError(f"step {plan.step} came where step {self.num_steps} was due")
        self.num_steps += 1
        for sequence in new:
            self._take_in(sequence)
        if [(s.request, s.index, s.row) for s in new] != list(plan.admitted):
            raise InvariantError(f"step {plan.step} admits other sequences than it was given")
        self._apply_deltas(plan)
        if self._pace is not None:
            self._pace(plan)
        fault = self._step_fault(plan) if self._step_fault is not None else None
        if fault is not None:
            if isinstance(fault, ExecutorError):
                self._break(plan)
            raise fault
        sound = ~self._broken[plan.rows]
        self._check_shape(plan, sound)
        self._copy(plan)
        if self._verify:
            self._stamp_and_read(plan, sound)
        return self._sample(plan)

    def copy_out(self, frames: I32, hosts: I32) -> None:
        """Copies stamps to host blocks; they are read at the very end, and what is written holds nothing before.

        Raises:
            ExecutorError: as injected by `move_fault`.
        """
        self._hosts[hosts] = _NOTHING
        self._move(out=True)
        self._hosts[hosts] = self._frames[frames]

    def copy_in(self, frames: I32, hosts: I32) -> None:
        """Copies stamps back, in the same way."""
        self._frames[frames] = _NOTHING
        self._move(out=False)
        self._frames[frames] = self._hosts[hosts]

    def _move(self, *, out: bool) -> None:
        number, self.num_moves = self.num_moves, self.num_moves + 1
        if self._move_pace is not None:
            self._move_pace(out)
        fault = self._move_fault(number) if self._move_fault is not None else None
        if fault is not None:
            raise fault

    def close(self) -> None:
        """Remembers that it was closed."""
        self.closed = True

    # -- sequences and tables ----------------------------------------------------------------------------------

    def _take_in(self, sequence: NewSequence) -> None:
        row, prompt = sequence.row, sequence.prompt
        if row >= len(self._request):
            self._add_rows(max(16, row + 1 - len(self._request), len(self._request)))
        self._tables[row] = NO_BLOCK
        self._request[row] = sequence.request
        self._prompt[row] = self._known[row] = len(prompt)
        self._next[row] = -1
        self._broken[row] = False
        self._logprobs.pop(row, None)
        if sequence.sampling.logprobs is not None:
            self._logprobs[row] = sequence.sampling.logprobs
        self._seed[row] = seed_of(prompt, sequence.index)
        if self._verify:
            root = np.uint64(zlib.crc32(sequence.salt.encode()) + 1)
            marks = mix(prompt.astype(np.uint64), np.arange(len(prompt), dtype=np.uint64))
            self._stamps[row, : len(prompt)] = root + np.cumsum(marks, dtype=np.uint64)
        self._answers.pop(row, None)
        if self._answer is not None:
            self._answers[row] = np.asarray(self._answer(prompt), np.int32)

    def _add_rows(self, more: int) -> None:
        self._tables = np.vstack([self._tables, np.full((more, self._columns), NO_BLOCK, np.int32)])
        self._request = np.concatenate([self._request, np.full(more, -1, np.int64)])
        self._prompt = np.concatenate([self._prompt, np.zeros(more, np.int32)])
        self._known = np.concatenate([self._known, np.zeros(more, np.int32)])
        self._next = np.concatenate([self._next, np.zeros(more, np.int32)])
        self._seed = np.concatenate([self._seed, np.zeros(more, np.uint64)])
        self._broken = np.concatenate([self._broken, np.zeros(more, np.bool_)])
        if self._verify:
            fresh = np.zeros((more, self.max_context), np.uint64)
            self._stamps = np.concatenate([self._stamps, fresh])

    def _apply_deltas(self, plan: Plan) -> None:
        """Sets the changed entries. A first column starts a table anew, unless copied, so that no entry from before can be read."""
        rows, cols, blocks = plan.delta_rows, plan.delta_cols, plan.delta_blocks
        if len(rows) and (blocks.min() < 0 or blocks.max() >= self.num_blocks):
            raise InvariantError(
                f"step {plan.step} names a frame outside the pool of {self.num_blocks}"
            )
        firsts = np.flatnonzero((cols == 0) & ~np.isin(blocks, plan.copy_targets))
        begin = 0
        for first in [*firsts.tolist(), len(rows)]:
            self._tables[rows[begin:first], cols[begin:first]] = blocks[begin:first]
            if first < len(rows):
                self._tables[rows[first]] = NO_BLOCK
                self._next[rows[first]] = -1
                self._broken[rows[first]] = False
            begin = first

    # -- checks ------------------------------------------------------------------------------------------------

    def _check_shape(self, plan: Plan, sound: NDArray[np.bool_]) -> None:
        ends = plan.starts + plan.counts
        if len(np.unique(plan.rows)) != len(plan.rows):
            raise InvariantError(f"step {plan.step} names a row twice")
        wrong = {
            "belongs to another request": self._request[plan.rows] != plan.requests,
            "computes nothing": plan.counts < 1,
            "exceeds the context": ends > self.max_context,
            "computes a token that is not known": sound & (ends > self._known[plan.rows]),
            "does not sample after its last known token": sound
            & ~plan.samples
            & (ends >= self._known[plan.rows]),
        }
        decodes = np.arange(len(plan.rows)) < plan.num_decodes
        wrong["is no decode"] = decodes & sound & ((plan.counts != 1) | ~plan.samples)
        following = self._next[plan.rows]
        wrong["does not go on where it was"] = sound & (following >= 0) & (plan.starts != following)
        for what, mask in wrong.items():
            if mask.any():
                row = int(plan.rows[np.argmax(mask)])
                raise InvariantError(f"step {plan.step}: row {row} {what}")

    def _copy(self, plan: Plan) -> None:
        """Copies blocks as they are."""
        for source, target in zip(
            plan.copy_sources.tolist(), plan.copy_targets.tolist(), strict=True
        ):
            self._frames[target] = self._frames[source]

    def _break(self, plan: Plan) -> None:
        """Nothing is known from now on of the requests that the plan names, nor of what it was to write."""
        self._broken[np.isin(self._request, plan.requests)] = True
        self._slots[self._places(plan.rows, plan.starts, plan.counts)[2]] = _NOTHING
        self._frames[plan.copy_targets] = _NOTHING

    def _places(self, rows: I32, starts: I32, counts: I32) -> tuple[I32, I32, NDArray[np.int64]]:
        """(index into `rows`, position, slot) of positions [start, start + count) of each row that has a frame there."""
        owner = np.repeat(np.arange(len(rows), dtype=np.int32), counts)
        offsets = np.repeat(np.cumsum(counts) - counts, counts)
        positions = (np.arange(len(owner)) - offsets + starts[owner]).astype(np.int32)
        blocks = self._tables[rows[owner], positions // self.block_size].astype(np.int64)
        slots = blocks * self.block_size + positions % self.block_size
        held = blocks != NO_BLOCK
        return owner[held], positions[held], slots[held]

    def _stamp_and_read(self, plan: Plan, sound: NDArray[np.bool_]) -> None:
        """Writes the plan's stamps, then reads all positions up to each row's end. O(sum of lengths)."""
        rows, starts, requests = plan.rows[sound], plan.starts[sound], plan.requests[sound]
        ends = starts + plan.counts[sound]
        owner, positions, slots = self._places(rows, np.zeros_like(starts), ends)
        if len(owner) < ends.sum():
            at = int(np.argmax(np.bincount(owner, minlength=len(rows)) < ends))
            missing = int(np.setdiff1d(np.arange(ends[at]), positions[owner == at])[0])
            raise InvariantError(
                f"step {plan.step}: request {requests[at]} has no frame for position {missing}"
            )
        stamps = self._stamps[rows[owner], positions]
        written = positions >= starts[owner]
        if len(np.unique(slots[written])) < np.count_nonzero(written):
            raise InvariantError(f"step {plan.step}: two rows write one slot")
        self._slots[slots[written]] = stamps[written]
        foreign = self._slots[slots] != stamps
        if foreign.any():
            at = int(np.argmax(foreign))
            raise InvariantError(
                f"step {plan.step}: request {requests[owner[at]]} reads position {positions[at]} "
                f"in frame {slots[at] // self.block_size}, which holds something else"
            )

    # -- tokens ------------------------------------------------------------------------------------------------

    def _sample(self, plan: Plan) -> Sampled:
        rows, positions = plan.sampling, plan.sampled_positions
        if len(plan.fork_rows):
            self._check_forks(plan)
        tokens = scripted_tokens(self._seed[rows], positions, self.vocab_size)
        if self._answer is not None:
            offsets = (positions - self._prompt[rows]).tolist()
            for index, (row, offset) in enumerate(zip(rows.tolist(), offsets, strict=True)):
                answer = self._answers[row]
                tokens[index] = answer[offset] if offset < len(answer) else self._end_token
        failures: list[tuple[int, str]] = []
        if self._row_fault is not None:
            requests = self._request[rows].tolist()
            for index, (request, at) in enumerate(zip(requests, positions.tolist(), strict=True)):
                message = self._row_fault(request, at)
                if message is not None:
                    tokens[index] = 0
                    failures.append((index, message))
        logprobs = self._report(rows, tokens) if self._logprobs else ()
        self._known[rows] = positions + 1
        self._next[plan.rows] = plan.starts + plan.counts
        self._next[plan.fork_rows] = positions[len(positions) - len(plan.fork_rows) :]
        if self._verify:
            known = positions < self.max_context
            rows, at = rows[known], positions[known]
            marks = mix(tokens[known].astype(np.uint64), at.astype(np.uint64))
            self._stamps[rows, at] = self._stamps[rows, at - 1] + marks
        tokens.flags.writeable = False
        return Sampled(tokens, tuple(failures), logprobs)

    def _report(self, rows: I32, tokens: I32) -> tuple[tuple[int, TokenLogprobs], ...]:
        """Log-probabilities where they are asked for. In a script, token t has that of -t / vocab_size."""
        reports = []
        for index, (row, token) in enumerate(zip(rows.tolist(), tokens.tolist(), strict=True)):
            if row in self._logprobs:
                top = tuple(range(self._logprobs[row]))
                values = tuple(-i / self.vocab_size for i in top)
                reports.append((index, TokenLogprobs(-token / self.vocab_size, top, values)))
        return tuple(reports)

    def _check_forks(self, plan: Plan) -> None:
        parents, children = plan.rows[plan.fork_from], plan.fork_rows
        if not plan.samples[plan.fork_from].all():
            raise InvariantError(f"step {plan.step} forks a row that samples nothing")
        if (self._request[parents] != self._request[children]).any():
            raise InvariantError(f"step {plan.step} forks a row of another request")


_NOTHING = np.uint64(0)
