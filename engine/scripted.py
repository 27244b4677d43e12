"""ScriptedExecutor: a stand-in model that answers from a script and checks every plan like a stern machine.

For tests, and for measuring everything around the model. Its KV cache holds a (request, position) stamp a slot: a step
that reads a slot which its own request did not write at that position stops the engine, so a mistake in block
management cannot hide. Knows plans, block tables and scripted tokens; knows no text, no queues and no clients.
"""

import threading
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.core.arrays import I32
from engine.core.errors import ExecutorError, InvariantError
from engine.core.ids import NO_BLOCK
from engine.core.plan import Plan
from engine.executor import NewSequence, Sampled

Answer = Callable[[NDArray[np.int32]], Sequence[int]]
"""Prompt to the tokens that continue it; after their end `end_token` follows for ever."""


class ScriptedExecutor:
    """An `Executor` without a model. Tokens are a pure function of (prompt, position), so recomputing repeats them."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int = 16,
        max_context: int = 4096,
        vocab_size: int = 256,
        answer: Answer | None = None,
        end_token: int = 0,
        pace: Callable[[Plan], None] | None = None,
        step_fault: Callable[[Plan], BaseException | None] | None = None,
        row_fault: Callable[[int, int], str | None] | None = None,
        verify: bool = True,
    ) -> None:
        """Sets up an empty cache.

        Args:
            num_blocks: frames of the pool.
            block_size: positions in a frame.
            max_context: most positions of one sequence.
            vocab_size: tokens are drawn from 0 to this, exclusive.
            answer: what to say; without it tokens are drawn pseudo-randomly from 1 to `vocab_size` - 1.
            end_token: what follows an answer's last token.
            pace: called in the worker thread during each step: sleep there, advance a virtual clock, or hold a `Gate`.
            step_fault: an error to raise instead of computing this plan; `ExecutorError` fails the step only.
            row_fault: (request, position of the token to sample) to the message of a failure of that row alone.
            verify: check the stamps; off, a step costs no time that grows with the context.
        """
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_context = max_context
        self.vocab_size = vocab_size
        self.num_steps = 0
        self.closed = False
        self._answer = answer
        self._end_token = end_token
        self._pace = pace
        self._step_fault = step_fault
        self._row_fault = row_fault
        self._verify = verify
        self._columns = -(-max_context // block_size)
        self._tables: I32 = np.full((0, self._columns), NO_BLOCK, np.int32)
        self._request = np.full(0, -1, np.int64)
        self._prompt: I32 = np.zeros(0, np.int32)
        self._known: I32 = np.zeros(0, np.int32)
        self._seed = np.zeros(0, np.uint64)
        self._broken = np.zeros(0, np.bool_)
        self._answers: dict[int, NDArray[np.int32]] = {}
        self._slot_request = np.full(num_blocks * block_size, -1, np.int64)
        self._slot_position = np.full(num_blocks * block_size, -1, np.int32)

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
        if [(s.request, 0, s.row) for s in new] != list(plan.admitted):
            raise InvariantError(f"step {plan.step} admits other sequences than it was given")
        self._apply_deltas(plan)
        if self._pace is not None:
            self._pace(plan)
        fault = self._step_fault(plan) if self._step_fault is not None else None
        if fault is not None:
            if isinstance(fault, ExecutorError):
                self._broken[plan.rows] = True
            raise fault
        sound = ~self._broken[plan.rows]
        self._check_shape(plan, sound)
        if self._verify:
            self._stamp_and_read(plan, sound)
        return self._sample(plan)

    def close(self) -> None:
        """Remembers that it was closed."""
        self.closed = True

    # -- sequences and tables ----------------------------------------------------------------------------------

    def _take_in(self, sequence: NewSequence) -> None:
        row = sequence.row
        if row >= len(self._request):
            more = max(16, row + 1 - len(self._request), len(self._request))
            self._tables = np.vstack(
                [self._tables, np.full((more, self._columns), NO_BLOCK, np.int32)]
            )
            self._request = np.concatenate([self._request, np.full(more, -1, np.int64)])
            self._prompt = np.concatenate([self._prompt, np.zeros(more, np.int32)])
            self._known = np.concatenate([self._known, np.zeros(more, np.int32)])
            self._seed = np.concatenate([self._seed, np.zeros(more, np.uint64)])
            self._broken = np.concatenate([self._broken, np.zeros(more, np.bool_)])
        self._tables[row] = NO_BLOCK
        self._request[row] = sequence.request
        self._prompt[row] = self._known[row] = len(sequence.prompt)
        self._broken[row] = False
        self._seed[row] = zlib.crc32(sequence.prompt.tobytes())
        self._answers.pop(row, None)
        if self._answer is not None:
            self._answers[row] = np.asarray(self._answer(sequence.prompt), np.int32)

    def _apply_deltas(self, plan: Plan) -> None:
        """Sets the changed entries. A first column starts a table anew, so that no entry from before can be read."""
        rows, cols, blocks = plan.delta_rows, plan.delta_cols, plan.delta_blocks
        if len(rows) and (blocks.min() < 0 or blocks.max() >= self.num_blocks):
            raise InvariantError(
                f"step {plan.step} names a frame outside the pool of {self.num_blocks}"
            )
        firsts = np.flatnonzero(cols == 0)
        begin = 0
        for first in [*firsts.tolist(), len(rows)]:
            self._tables[rows[begin:first], cols[begin:first]] = blocks[begin:first]
            if first < len(rows):
                self._tables[rows[first]] = NO_BLOCK
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
        wrong["is no decode"] = (
            decodes & sound & ((plan.counts != 1) | (ends != self._known[plan.rows]))
        )
        for what, mask in wrong.items():
            if mask.any():
                row = int(plan.rows[np.argmax(mask)])
                raise InvariantError(f"step {plan.step}: row {row} {what}")

    def _stamp_and_read(self, plan: Plan, sound: NDArray[np.bool_]) -> None:
        """Writes the plan's stamps, then reads all positions up to each row's end. O(sum of lengths)."""
        rows, starts, requests = plan.rows[sound], plan.starts[sound], plan.requests[sound]
        lengths = starts + plan.counts[sound]
        owner = np.repeat(np.arange(len(rows)), lengths)
        positions = np.arange(len(owner), dtype=np.int32) - np.repeat(
            np.cumsum(lengths) - lengths, lengths
        )
        blocks = self._tables[rows[owner], positions // self.block_size]
        if (blocks == NO_BLOCK).any():
            at = int(np.argmax(blocks == NO_BLOCK))
            raise InvariantError(
                f"step {plan.step}: request {requests[owner[at]]} has no frame for position {positions[at]}"
            )
        slots = blocks * self.block_size + positions % self.block_size
        written = positions >= starts[owner]
        self._slot_request[slots[written]] = requests[owner[written]]
        self._slot_position[slots[written]] = positions[written]
        foreign = (self._slot_request[slots] != requests[owner]) | (
            self._slot_position[slots] != positions
        )
        if foreign.any():
            at = int(np.argmax(foreign))
            raise InvariantError(
                f"step {plan.step}: request {requests[owner[at]]} reads position {positions[at]} in frame {blocks[at]}, "
                f"which holds position {self._slot_position[slots[at]]} of request {self._slot_request[slots[at]]}"
            )

    # -- tokens ------------------------------------------------------------------------------------------------

    def _sample(self, plan: Plan) -> Sampled:
        rows = plan.rows[plan.samples]
        positions = (plan.starts + plan.counts)[plan.samples]
        tokens = scripted_tokens(self._seed[rows], positions, self.vocab_size)
        if self._answer is not None:
            offsets = (positions - self._prompt[rows]).tolist()
            for index, (row, offset) in enumerate(zip(rows.tolist(), offsets, strict=True)):
                answer = self._answers[row]
                tokens[index] = answer[offset] if offset < len(answer) else self._end_token
        self._known[rows] = positions + 1
        failures: list[tuple[int, str]] = []
        if self._row_fault is not None:
            requests = plan.requests[plan.samples].tolist()
            for index, (request, at) in enumerate(zip(requests, positions.tolist(), strict=True)):
                message = self._row_fault(request, at)
                if message is not None:
                    tokens[index] = 0
                    failures.append((index, message))
        tokens.flags.writeable = False
        return Sampled(tokens, tuple(failures))


def scripted_tokens(
    seeds: NDArray[np.uint64], positions: NDArray[np.int32], vocab_size: int
) -> NDArray[np.int32]:
    """Tokens in [1, vocab_size) from (seed, position) by the splitmix64 finaliser. Shapes [n], [n] -> [n] int32."""
    x = (seeds << np.uint64(32)) + positions.astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return (np.uint64(1) + x % np.uint64(vocab_size - 1)).astype(np.int32)


def scripted_answer(prompt: NDArray[np.int32], num_tokens: int, vocab_size: int = 256) -> list[int]:
    """What a `ScriptedExecutor` without `answer` generates after `prompt`: the reference that streams are compared with."""
    seeds = np.full(num_tokens, zlib.crc32(prompt.tobytes()), np.uint64)
    positions = np.arange(len(prompt), len(prompt) + num_tokens, dtype=np.int32)
    tokens: list[int] = scripted_tokens(seeds, positions, vocab_size).tolist()
    return tokens


class Gate:
    """A `pace` that holds each step in the worker until it is let go; for tests of what happens during a step."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entered = -1
        self._allowed = 0
        self._open = False

    def __call__(self, plan: Plan) -> None:
        """Announces that the step runs and waits for its turn to end."""
        with self._changed:
            self._entered = plan.step
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open or plan.step < self._allowed)

    def let_go(self, steps: int = 1) -> None:
        """Lets the next `steps` steps end."""
        with self._changed:
            self._allowed += steps
            self._changed.notify_all()

    def open(self) -> None:
        """Holds nothing any more."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def wait_until_running(self, step: int) -> None:
        """Blocks the calling thread until step number `step` has begun."""
        with self._changed:
            self._changed.wait_for(lambda: self._entered >= step)
