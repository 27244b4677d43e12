"""Beams: whose history each hypothesis of a beam search goes on with, drawn since the twin has no model. Knows plans only.

After each step every hypothesis continues one that is drawn from its beam, each as likely as the other. So beams forget as in the
simplest model of drift: all hypotheses soon have all but their last few tokens in common, and share the blocks of these.
"""

import numpy as np

from engine.core.arrays import I32
from engine.core.plan import Plan


class Beams:
    """Draws from one seed, in the order of steps."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def parents(self, plan: Plan, rows: I32) -> I32:
        """For each of `rows`, the sampling rows of `plan`, a row of the same request."""
        parents = rows.copy()
        requests = np.concatenate(
            [plan.requests[plan.samples], plan.requests[plan.fork_from]]
        ).tolist()
        members: dict[int, list[int]] = {}
        for at, request in enumerate(requests):
            members.setdefault(request, []).append(at)
        for places in members.values():
            parents[places] = rows[self._rng.choice(places, len(places))]
        return parents
