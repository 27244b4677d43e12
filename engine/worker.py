"""A thread that does jobs one at a time: one runs the model, one copies blocks. Jobs go in without waiting; what comes out is
handed to the event loop.

Knows a clock and what to do with a job; knows no core, no streams. The thread takes the next job from its queue the moment one
ends, so it never waits for the event loop while a job is there, and the event loop never waits for it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

import anyio
from msgspec import Struct

from engine.core.errors import ExecutorError

Job = TypeVar("Job")
Result = TypeVar("Result")


class Done(Struct, Generic[Job, Result], frozen=True, eq=False):
    """How a job went: what it gave, or why it failed."""

    job: Job
    started: int
    ended: int
    outcome: Result | ExecutorError


class Died(Struct, frozen=True, eq=False):
    """The thread broke in a way that no job explains; it does nothing more."""

    name: str
    cause: BaseException


class Worker(Generic[Job, Result]):
    """Does jobs in order in a thread of its own. Made, started and stopped on the event loop."""

    def __init__(
        self,
        name: str,
        work: Callable[[Job], Result],
        clock: Callable[[], int],
        deliver: Callable[[Done[Job, Result] | Died], None],
    ) -> None:
        """`work` is called in the thread, and may raise `ExecutorError`; `deliver` on the event loop, in the order of the jobs."""
        self._name = name
        self._do = work
        self._clock = clock
        self._deliver = deliver
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._stopped = anyio.Event()
        self._thread = threading.Thread(target=self._work, name=f"kilburn-{name}", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queues a job."""
        self._queue.put(job)

    def finish(self) -> None:
        """Ends the thread when the queued jobs are done."""
        self._queue.put(None)

    async def ended(self) -> None:
        """Waits for the end of the thread, after `finish`."""
        await self._stopped.wait()
        self._thread.join()

    def _work(self) -> None:
        try:
            while (job := self._queue.get()) is not None:
                started = self._clock()
                outcome: Result | ExecutorError
                try:
                    outcome = self._do(job)
                except ExecutorError as error:
                    outcome = error
                except BaseException as cause:  # a thread must not end unseen
                    self._post(self._deliver, Died(self._name, cause))
                    return
                self._post(self._deliver, Done(job, started, self._clock(), outcome))
        finally:
            self._post(self._stopped.set)

    def _post(self, call: Callable[..., object], *args: object) -> None:
        """Calls on the event loop; in vain once that is closed, when nobody is left to tell."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *args)
