"""The one thread that runs the model. Plans go in without waiting; what comes out is handed to the event loop.

Knows an executor and a clock; knows no core, no streams. The thread takes the next plan from its queue the moment a step
ends, so it never waits for the event loop while a plan is there, and the event loop never waits for it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import anyio
from msgspec import Struct

from engine.core.errors import ExecutorError
from engine.core.plan import Plan
from engine.executor import Executor, NewSequence, Sampled


class StepDone(Struct, frozen=True, eq=False):
    """How a step went: what it sampled, or why it failed."""

    step: int
    started: int
    ended: int
    outcome: Sampled | ExecutorError


class Died(Struct, frozen=True, eq=False):
    """The executor broke in a way that no step explains; nothing more will run."""

    cause: BaseException


class Worker:
    """Runs plans in order, one at a time, in a thread of its own. Made, started and stopped on the event loop."""

    def __init__(
        self,
        executor: Executor,
        clock: Callable[[], int],
        deliver: Callable[[StepDone | Died], None],
    ) -> None:
        """`deliver` is called on the event loop, in plan order."""
        self._executor = executor
        self._clock = clock
        self._deliver = deliver
        self._queue: SimpleQueue[tuple[Plan, Sequence[NewSequence]] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._stopped = anyio.Event()
        self._thread = threading.Thread(target=self._work, name="kilburn-model", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def put(self, plan: Plan, new: Sequence[NewSequence]) -> None:
        """Queues a plan and the sequences that it introduces."""
        self._queue.put((plan, new))

    async def stop(self) -> None:
        """Lets the queued plans finish, then ends the thread."""
        self._queue.put(None)
        await self._stopped.wait()
        self._thread.join()

    def _work(self) -> None:
        try:
            while (work := self._queue.get()) is not None:
                started = self._clock()
                outcome: Sampled | ExecutorError
                try:
                    outcome = self._executor.execute(*work)
                except ExecutorError as error:
                    outcome = error
                except BaseException as cause:  # a thread must not end unseen
                    self._post(self._deliver, Died(cause))
                    return
                self._post(self._deliver, StepDone(work[0].step, started, self._clock(), outcome))
        finally:
            self._post(self._stopped.set)

    def _post(self, call: Callable[..., object], *args: object) -> None:
        """Calls on the event loop; in vain once that is closed, when nobody is left to tell."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *args)
