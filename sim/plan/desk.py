"""Where the inquiries of a plan get their simulations: several inquiries go on at once, each asks for jobs and waits for all of them.

An inquiry is a generator of lists of jobs; it is sent their results in the same order. The same job is done once, whoever asks. What an inquiry finds
depends on results alone, so the number of workers changes nothing.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from engine.core.errors import ConfigError, InvariantError
from sim.sweep.cache import Cache
from sim.sweep.workers import Failure, Workers

T = TypeVar("T")


class Job(NamedTuple):
    """A simulation."""

    key: str
    """Of what its result depends on."""
    kind: type[Any]
    """Of its result."""
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    label: str
    """What is simulated, for people who wait."""
    whole_key: str | None = None
    """Where the run may be given up: the key of the same run without that. A run that was not given up stands for both."""
    simulates: bool = True
    """It counts as a simulation."""


Jobs = list[Job]
Results = list[Any]
Inquiry = Generator[Jobs, Results, T]


class Standing(NamedTuple):
    """How far the work is, in simulations: a plan's other jobs are not counted, as its report does not count them."""

    done: int
    """Those from the cache included."""
    cached: int
    running: int
    """Under way, or waiting for a worker."""
    label: str
    """Of the one that was asked for first; empty where none is."""


def sure(result: Any) -> Any:
    """The result of a job that must not fail.

    Raises:
        ConfigError: it did, for a setting or the trace.
        InvariantError: it did, through a fault of ours.
    """
    if isinstance(result, Failure):
        if result.is_ours:
            raise InvariantError(f"{result.message}\n{result.details}".rstrip())
        raise ConfigError(result.message)
    return result


class Desk:
    """Hands jobs to workers and results to inquiries."""

    def __init__(
        self, workers: Workers, cache: Cache, watch: Callable[[Standing], None] | None = None
    ) -> None:
        self._workers = workers
        self._cache = cache
        self._watch = watch
        self._results: dict[str, Any] = {}
        self._jobs: dict[str, Job] = {}
        """Under way."""
        self._cached = 0
        self.num_simulations = 0
        """Different ones that have been asked for."""

    def run(self, inquiries: Sequence[Inquiry[T]]) -> list[T]:
        """What each inquiry finds, in order.

        Raises:
            ServeError: from an inquiry, or the cache cannot be written.
        """
        asked = [_Asked(inquiry) for inquiry in inquiries]
        for one in asked:
            self._go_on(one, None)
        while any(one.is_open for one in asked):
            for key, result in self._workers.wait():
                self._keep(self._jobs.pop(key), result)
            self._tell()
            for one in asked:
                if one.is_open and all(job.key in self._results for job in one.jobs):
                    self._go_on(one, [self._results[job.key] for job in one.jobs])
        return [one.found for one in asked]

    def _go_on(self, one: "_Asked[T]", results: Results | None) -> None:
        """Lets the inquiry go on until it waits for a job that is not done."""
        while one.next(results):
            for job in one.jobs:
                self._submit(job)
            if not all(job.key in self._results for job in one.jobs):
                return
            results = [self._results[job.key] for job in one.jobs]

    def _submit(self, job: Job) -> None:
        if job.key in self._results or job.key in self._jobs:
            return
        self.num_simulations += job.simulates
        found = self._cache.get(job.key, job.kind)
        if found is not None:
            self._cached += job.simulates
            self._know(job, found)
            return
        self._jobs[job.key] = job
        self._workers.submit(job.key, job.function, *job.arguments)
        self._tell()

    def _keep(self, job: Job, result: Any) -> None:
        """Knows the result, and keeps it for the next time."""
        for key in self._know(job, result):
            if not isinstance(result, Failure):
                self._cache.put(key, result)

    def _know(self, job: Job, result: Any) -> list[str]:
        keys = [job.key]
        if job.whole_key is not None and getattr(result, "stopped_s", 0) is None:
            keys.append(job.whole_key)
        for key in keys:
            self._results[key] = result
        return keys

    def _tell(self) -> None:
        if self._watch is not None:
            running = sum(job.simulates for job in self._jobs.values())
            done = self.num_simulations - running
            label = next((job.label for job in self._jobs.values()), "")
            self._watch(Standing(done, self._cached, running, label))


class _Asked(Generic[T]):
    """An inquiry that is under way, and the jobs that it waits for."""

    found: T

    def __init__(self, inquiry: Inquiry[T]) -> None:
        self._inquiry = inquiry
        self.jobs: Jobs = []
        self.is_open = True

    def next(self, results: Results | None) -> bool:
        """Whether it asks for more, after these results."""
        try:
            self.jobs = self._inquiry.send(results)  # type: ignore[arg-type]
        except StopIteration as end:
            self.found = end.value
            self.is_open = False
        return self.is_open
