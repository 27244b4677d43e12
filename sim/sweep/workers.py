"""Worker processes: jobs go in, results come out as they are ready. A job is a function of the top level of a module and its arguments.

A job's error, and the death of the process that ran it, are results too: the other jobs go on. Workers are started afresh and not
forked, ignore Ctrl-C, and end with the parent. With one worker the jobs run in this process, in the order they came.
"""

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, NamedTuple, Self

from engine.core.errors import InvariantError, ServeError


class Failure(NamedTuple):
    """A job that gave no result, and why, in a sentence."""

    message: str
    is_ours: bool
    """A fault of the program and not of a setting or a trace."""
    details: str = ""
    """A traceback, where there is one."""


class Done(NamedTuple):
    """A job that has ended."""

    job: Any
    """What it was submitted under."""
    result: Any
    """What the function returned, or a `Failure`."""


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """The function's result, or the failure that it ended in."""
    try:
        return function(*arguments)
    except ServeError as error:
        return Failure(error.message, isinstance(error, InvariantError))
    except MemoryError:
        return Failure("out of memory: use fewer --workers, or a --limit", False)
    except Exception as error:
        # The root of a job: whatever it was, the other jobs go on and this one says what happened.
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(last.filename)}:{last.lineno}"  # noqa: PTH119
        message = f"{type(error).__name__} in {where}: {error}"
        return Failure(message, True, traceback.format_exc())


def _serve(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            function, arguments = pipe.recv()
            pipe.send(attempt(function, arguments))
        except (EOFError, BrokenPipeError):
            return


class _Worker:
    """A process, its pipe, and the job it has."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.job: Any = None
        self.is_busy = False
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        # A process inherits what is blocked, so Ctrl-C does not end it with a traceback while it still imports. The tracker of
        # multiprocessing, started with the first process, would unblock it again: it comes before.
        resource_tracker.ensure_running()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()

    def stop(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


class Workers:
    """Runs jobs on up to `count` processes. A context manager: leaving it ends them, jobs that run included."""

    def __init__(self, count: int | None = None) -> None:
        """By default one for each core."""
        self.count = count if count is not None else usable_cores()
        self._waiting: deque[tuple[Any, Callable[..., Any], tuple[Any, ...]]] = deque()
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    @property
    def num_open(self) -> int:
        """Jobs that have not been returned yet."""
        return len(self._waiting) + sum(worker.is_busy for worker in self._workers)

    def submit(self, job: Any, function: Callable[..., Any], *arguments: Any) -> None:
        """`function(*arguments)` is to be run; `job` comes back with its result."""
        self._waiting.append((job, function, arguments))
        if self.count > 1:
            self._hand_out()

    def wait(self) -> list[Done]:
        """At least one job that has ended since; none where no job is open."""
        if self.count <= 1:
            if not self._waiting:
                return []
            job, function, arguments = self._waiting.popleft()
            return [Done(job, attempt(function, arguments))]
        self._hand_out()
        busy = [worker for worker in self._workers if worker.is_busy]
        if not busy:
            return []
        ready = wait([worker.pipe for worker in busy])
        done = [self._collect(worker) for worker in busy if worker.pipe in ready]
        self._hand_out()
        return done

    def _collect(self, worker: _Worker) -> Done:
        try:
            result = worker.pipe.recv()
            worker.is_busy = False
        except (EOFError, ConnectionResetError):
            worker.stop()
            self._workers.remove(worker)
            result = Failure(_death(worker.process.exitcode), False)
        return Done(worker.job, result)

    def _hand_out(self) -> None:
        while self._waiting:
            worker = next((worker for worker in self._workers if not worker.is_busy), None)
            if worker is None:
                if len(self._workers) >= self.count:
                    return
                worker = _Worker()
                self._workers.append(worker)
            worker.job, function, arguments = self._waiting.popleft()
            worker.is_busy = True
            try:
                worker.pipe.send((function, arguments))
            except (BrokenPipeError, ConnectionResetError):
                # It died while idle; `wait` finds the pipe at its end and tells.
                continue


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        why = ", most likely out of memory: use fewer --workers" if name == "SIGKILL" else ""
        return f"the worker process was ended by {name}{why}"
    return f"the worker process ended with exit code {code}"
