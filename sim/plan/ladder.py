"""The sizes around an answer, from the thriftiest to the safest: replicas two by two, users by tenths and one at least. Runs nothing."""

from typing import Final

from msgspec.structs import replace

from sim.plan.desk import Job
from sim.plan.question import Question
from sim.plan.sized import Sized, with_replicas
from sim.report.figures import Resolved

REPLICA_STEPS: Final = (-2, -1, 0, 1, 2)
USER_SHARES: Final = (1.25, 1.1, 1.0, 0.9, 0.75)


class Ladder:
    """Sizes of a fleet, or of a crowd, and how each is simulated."""

    def __init__(self, question: Question, sized: Sized) -> None:
        """Of a candidate that has an answer."""
        assert sized.machine is not None
        self._question = question
        self._shaping = sized.machine.settings.shaping
        self._users = sized.candidate.users is not None
        answer = sized.candidate.users or sized.candidate.replicas
        assert answer is not None
        self.answer = answer
        if self._users:
            # A tenth of a few users is less than one: then the sizes are neighbours.
            shares = [round(answer * share) - answer for share in USER_SHARES]
            steps = [
                max(share, -step) if step < 0 else min(share, -step)
                for share, step in zip(shares, REPLICA_STEPS, strict=True)
            ]
        else:
            steps = list(REPLICA_STEPS)
        sizes = [max(1, answer + step) for step in steps]
        self.sizes: list[int] = list(dict.fromkeys(sizes))
        """The thriftiest first, the answer among them."""

    @property
    def safer(self) -> int:
        """The size after the answer; the answer, where that is the safest there is."""
        place = self.sizes.index(self.answer)
        return self.sizes[min(place + 1, len(self.sizes) - 1)]

    def job(self, machine: Resolved, size: int, *, whole: bool = True) -> Job:
        """Simulates that size of the machine; not whole: gives it up when it cannot hold, where the requests are those of the base."""
        if self._users:
            return self._question.users(machine, size)
        most = (
            self._question.most if not whole and machine.settings.shaping == self._shaping else None
        )
        return self._question.trial(with_replicas(machine, size), most)

    def redraw(self, machine: Resolved, size: int, number: int) -> Job:
        """The same with another draw of the trace; `number` from 0."""
        if self._users:
            return self._question.users(machine, size, self._question.crowd.seed + 1 + number)
        settings = machine.settings
        shaping = replace(settings.shaping, resample=True, seed=settings.shaping.seed + number)
        other = replace(machine, settings=replace(settings, shaping=shaping))
        return self._question.trial(with_replicas(other, size))
