"""Gates: hold what the threads of a `ScriptedExecutor` do, steps one by one or transfers, for tests of what happens meanwhile."""

import threading

from engine.core.plan import Plan


class Gate:
    """A `pace` that holds each step in the worker until it is let go."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entered = -1
        self._allowed = 0
        self._open = False
        self._waiting = False

    def __call__(self, plan: Plan) -> None:
        """Announces that the step runs and waits for its turn to end."""
        with self._changed:
            self._entered = plan.step
            self._changed.notify_all()
            self._waiting = True
            self._changed.wait_for(lambda: self._open or plan.step < self._allowed)
            self._waiting = False

    @property
    def waiting(self) -> bool:
        """Whether a step is being held that nobody has let go."""
        with self._changed:
            return self._waiting and not self._open and self._entered >= self._allowed

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


class MoveGate:
    """Holds transfers in one direction until it is opened."""

    def __init__(self, *, out: bool) -> None:
        self._out = out
        self.entered = threading.Event()
        self._opened = threading.Event()

    def __call__(self, out: bool) -> None:
        if out == self._out:
            self.entered.set()
            self._opened.wait()

    def open(self) -> None:
        self._opened.set()
