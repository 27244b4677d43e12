"""The two threads of a live engine: one runs the model, one copies blocks; and what they have done that nobody has taken in yet.

Knows jobs and their ends; knows no core and no streams.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from engine.core.errors import ExecutorError
from engine.core.plan import Plan, Transfer
from engine.executor import Executor, NewSequence, Sampled
from engine.transfers import carry_out
from engine.worker import Died, Done, Worker

Step = tuple[Plan, list[NewSequence]]
StepDone = Done[Step, Sampled]
MoveDone = Done[Transfer, None]
Item = TypeVar("Item")


class Crew:
    """Made, started and ended on the event loop."""

    def __init__(self, executor: Executor, clock: Callable[[], int], wake: asyncio.Event) -> None:
        """`wake` is set whenever a job is done, or a thread has died."""
        self._wake = wake
        self._steps: deque[StepDone] = deque()
        self._moves: deque[MoveDone] = deque()
        self._died: Died | None = None
        self._model: Worker[Step, Sampled] = Worker(
            "model runner", lambda step: executor.execute(*step), clock, self._step_done
        )
        self._mover: Worker[Transfer, None] = Worker(
            "block copier", lambda transfer: carry_out(executor, transfer), clock, self._move_done
        )

    def start(self) -> None:
        """Starts both threads."""
        self._model.start()
        self._mover.start()

    def run_step(self, plan: Plan, new: list[NewSequence]) -> None:
        """Queues a step."""
        self._model.put((plan, new))

    def move(self, transfer: Transfer) -> None:
        """Queues a transfer."""
        self._mover.put(transfer)

    def steps(self) -> Iterator[StepDone]:
        """Takes the steps that are done, oldest first, those included that end meanwhile."""
        return _drained(self._steps)

    def moves(self) -> Iterator[MoveDone]:
        """Takes the transfers that are done, in the same way."""
        return _drained(self._moves)

    def check(self) -> None:
        """Raises `ExecutorError` where a thread has died."""
        if self._died is not None:
            raise ExecutorError(f"the {self._died.name} died") from self._died.cause

    def finish(self) -> None:
        """Ends both threads when what is queued is done."""
        self._model.finish()
        self._mover.finish()

    async def ended(self) -> None:
        """Waits for the end of both, after `finish`."""
        await self._model.ended()
        await self._mover.ended()

    def _step_done(self, done: StepDone | Died) -> None:
        if isinstance(done, Died):
            self._died = done
        else:
            self._steps.append(done)
        self._wake.set()

    def _move_done(self, done: MoveDone | Died) -> None:
        if isinstance(done, Died):
            self._died = done
        else:
            self._moves.append(done)
        self._wake.set()


def _drained(items: deque[Item]) -> Iterator[Item]:
    while items:
        yield items.popleft()
