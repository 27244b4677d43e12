"""A model for tests in which somebody must still be at work when somebody else comes, however slow both are."""

import threading
import time

from engine.core.plan import Plan
from engine.loop import Engine

BEGUN_STEPS = 10
"""So many tokens each has at least: enough for a whole character of any script."""


class StandStill:
    """A `pace`: when all who are there have begun to speak it holds the step, until another comes or one of them goes.

    So an answer that is under way stays so, and a newcomer still gets his first tokens.
    """

    def __init__(self, step_s: float = 0.0, begun_steps: int = BEGUN_STEPS) -> None:
        """Each step takes `step_s` at least; who has had `begun_steps` tokens has begun. Holds nothing before it attends to an engine."""
        self._engine: Engine | None = None
        self._step_s = step_s
        self._begun_steps = begun_steps
        self._opened = threading.Event()
        self._num_quiet = 0
        """Steps in a row in which nobody was new and nobody waited."""

    def __call__(self, plan: Plan) -> None:
        """Waits while there is nothing to do but to go on."""
        time.sleep(self._step_s)
        self._num_quiet = self._num_quiet + 1 if self._is_quiet(plan) else 0
        while self._num_quiet > self._begun_steps and self._is_quiet(plan):
            if self._opened.wait(0.002):
                return

    def attend(self, engine: Engine) -> None:
        """`engine` is the one whose steps these are."""
        self._engine = engine

    def open(self) -> None:
        """Holds nothing any more."""
        self._opened.set()

    def _is_quiet(self, plan: Plan) -> bool:
        if self._engine is None or plan.num_decodes < len(plan.rows):
            return False
        return self._engine.num_open == len(set(plan.requests.tolist()))
