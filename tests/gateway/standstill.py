"""A model for tests in which somebody must still be at work when somebody else comes, however slow both are."""

import threading
import time
from collections.abc import Callable

from engine.core.plan import Plan

BEGUN_STEPS = 10
"""So many tokens each has at least: enough for a whole character of any script."""


class StandStill:
    """A `pace`: when all who are there have begun to speak it holds the step, until another comes or one of them goes.

    So an answer that is under way stays so, and a newcomer still gets his first tokens.
    """

    def __init__(self, step_s: float = 0.0) -> None:
        """Each step takes `step_s` at least."""
        self.num_open: Callable[[], int] = lambda: 0
        """How many requests the engine has open; told once there is an engine."""
        self._step_s = step_s
        self._opened = threading.Event()
        self._num_quiet = 0
        """Steps in a row in which nobody was new and nobody waited."""

    def __call__(self, plan: Plan) -> None:
        """Waits while there is nothing to do but to go on."""
        time.sleep(self._step_s)
        self._num_quiet = self._num_quiet + 1 if self._is_quiet(plan) else 0
        while self._num_quiet > BEGUN_STEPS and self._is_quiet(plan):
            if self._opened.wait(0.002):
                return

    def open(self) -> None:
        """Holds nothing any more."""
        self._opened.set()

    def _is_quiet(self, plan: Plan) -> bool:
        in_step = len(set(plan.requests.tolist()))
        return plan.num_decodes == len(plan.rows) and self.num_open() == in_step
