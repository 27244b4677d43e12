"""Engine: drives the core with a real model and serves many streams. The only place where live time enters.

One task works the core through a `Desk`; the model runs in one worker thread, block copies in another; step n + 1 is planned
while step n runs. Knows requests, tokens and streams; knows no HTTP, no tensors, and takes no scheduling decision.

The order of things, which the twin repeats: a submission, an abort, an expiry or the end of a transfer reaches the core at the moment
it is made. A boundary follows each step that ends, and such inputs for which a plan could be opened at once: commit, then plan.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import anyio
import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.alarm import Alarm
from engine.audience import Audience, Heard
from engine.core.config import CoreConfig
from engine.core.content import TokenContent
from engine.core.errors import (
    CapacityError,
    ExecutorError,
    InvariantError,
)
from engine.core.frames import FrameMap
from engine.core.ids import RequestId, TimeNs
from engine.core.plan import (
    Finish,
    MemoryReport,
    Plan,
    Request,
    StepFailed,
)
from engine.core.scheduler import Scheduler
from engine.crew import Crew, MoveDone, StepDone
from engine.desk import CallRecorder, Counters, Desk, Watcher
from engine.executor import Executor, Sampled
from engine.fit import check_fit, check_tokens, refusal
from engine.integrity import LastCalls
from engine.requests import Generation
from engine.streams import Codec, Stream
from engine.waiting import WaitingRoom

_LOG = logging.getLogger(__name__)

_STOPPED = "the server is shutting down"


class Recorder(CallRecorder, Protocol):
    """Where a live run goes. Must neither raise nor block."""

    @property
    def failure(self) -> str | None:
        """Why nothing is recorded any more, if something went wrong."""
        ...

    def prompt(self, request: RequestId, tokens: NDArray[np.int32]) -> None:
        """Content of a request, just before its submission is recorded."""
        ...

    def sampled(self, step: int, tokens: NDArray[np.int32]) -> None:
        """Tokens of a step, just before its commit is recorded."""
        ...


class Observer(Protocol):
    """Who counts what the engine does. Must neither raise nor block."""

    def admitted(self, request: RequestId) -> None:
        """`request` begins to run for the first time."""
        ...

    def stepped(self, num_tokens: int, seconds: float) -> None:
        """A step computed `num_tokens` positions."""
        ...

    def moved(self, num_blocks: int, seconds: float, *, out: bool, ok: bool) -> None:
        """A transfer of blocks between the pools is over."""
        ...


class Engine:
    """The live engine. All methods are for the event loop's thread."""

    def __init__(
        self,
        executor: Executor,
        config: CoreConfig,
        codec: Codec,
        *,
        model_name: str,
        clock: Callable[[], int] = time.monotonic_ns,
        recorder: Recorder | None = None,
        max_queue_requests: int = 1024,
        max_queue_tokens: int = 1 << 20,
        stop_limit_s: float = 60.0,
        check_every_step: bool = False,
        dump: Path = Path("kilburn-decisions.jsonl"),
    ) -> None:
        """Sets up; nothing runs before `run`.

        Args:
            executor: the model; closing it is its owner's business, after `run` has returned.
            config: of the core; its pools must be the executor's.
            codec: tokens to text.
            model_name: as clients know it.
            clock: integer nanoseconds.
            recorder: where the run is recorded. Without one, and without checks, the core keeps no decision log.
            max_queue_requests: most requests that wait for admission; more are refused.
            max_queue_tokens: most prompt tokens of waiting requests together. A single longer prompt may wait alone.
            stop_limit_s: how long a stopping engine waits for the steps under way.
            check_every_step: hold the core to its invariants at every boundary, before anything it decided is done or
                delivered. Costs time that grows with the pool.
            dump: where the last decisions are written if the core breaks; only where it is checked.

        Raises:
            ConfigError: `config` asks for a pool or a context that the executor does not have.
        """
        check_fit(executor, config)
        if recorder is None and not check_every_step:
            quiet = msgspec.structs.replace(config.scheduler, log=False)
            config = msgspec.structs.replace(config, scheduler=quiet)
        self.model_name = model_name
        self.config = config
        self._executor = executor
        self._codec = codec
        self._clock = clock
        self._recorder = recorder
        self._stop_limit_s = stop_limit_s
        self._last_calls = LastCalls(dump, recorder) if check_every_step else None
        self._desk = Desk(Scheduler(config), clock, self._last_calls or recorder)
        self._audience = Audience()
        self._observer: Observer | None = None
        self._waiting = WaitingRoom(max_queue_requests, max_queue_tokens)
        self._next_id = 0
        self._wake = asyncio.Event()
        self._alarm = Alarm(clock, self._wake)
        self._crew: Crew | None = None
        self._wanted = False
        """An input came while a plan could be opened, and no boundary followed yet."""
        self._stopping = False
        self._closed: str | None = None
        self._broken: InvariantError | None = None

    # -- what the gateway calls --------------------------------------------------------------------------------

    @property
    def max_context(self) -> int:
        """Most tokens, prompt and output together, of one sequence."""
        return self.config.scheduler.max_context

    @property
    def num_open(self) -> int:
        """Streams that have not ended."""
        return len(self._audience)

    @property
    def counters(self) -> Counters:
        """What happened so far."""
        return self._desk.counters

    @property
    def recording(self) -> bool:
        """Whether what happens is being recorded; not any more once that has failed."""
        return self._recorder is not None and self._recorder.failure is None

    def memory(self) -> MemoryReport:
        """The pools and the queues now."""
        return self._desk.memory()

    def frames(self) -> FrameMap:
        """What lies in each frame of the pool now."""
        return self._desk.frames()

    def statuses(self) -> dict[RequestId, str]:
        """Where each request stands that has been admitted and has not ended, in the words of `Status`."""
        return {request: status.value for request, status in self._desk.statuses().items()}

    def watch(self, watcher: Watcher | None) -> None:
        """Tells `watcher` all decisions from now on, in place of whom it told before."""
        self._desk.watch(watcher)

    def observe(self, observer: Observer) -> None:
        """Tells `observer` from now on."""
        self._observer = observer

    def open(self, generation: Generation) -> Stream:
        """Submits a generation now; its stream. Whoever opens a stream reads it to its end or aborts it.

        Raises:
            RequestError: it can never run here; `reason` is the core's code, `param` the field at fault.
            CapacityError: too much is waiting already, or the engine has stopped.
        """
        if self._closed is not None or self._stopping:
            raise CapacityError(self._closed or _STOPPED)
        prompt = generation.prompt
        check_tokens(generation, self._executor.vocab_size)
        self._waiting.check(len(prompt))
        request = self._request(generation)
        if self._recorder is not None:
            self._recorder.prompt(request.id, prompt)
        rejected = self._desk.submit(request)
        self._next_id += 1
        if rejected is not None:
            raise refusal(rejected, generation)
        stream = Stream(request.id, generation, self._codec, self._abort, self._audience.announce)
        self._audience.add(stream)
        self._waiting.enter(request.id, len(prompt))
        self._take_input()
        self._set_timer()
        return stream

    def _request(self, generation: Generation) -> Request:
        deadline = None
        if generation.deadline_ms is not None:
            deadline = TimeNs(self._clock() + generation.deadline_ms * 1_000_000)
        return Request(
            id=RequestId(self._next_id),
            num_prompt=len(generation.prompt),
            max_tokens=generation.max_tokens,
            num_sequences=generation.num_rows,
            beam=generation.beam is not None,
            content=TokenContent(generation.prompt),
            salt=generation.salt,
            tenant=generation.tenant,
            weight=generation.weight,
            priority=generation.priority,
            deadline=deadline,
        )

    def stop(self) -> None:
        """Makes `run` return: open streams end with an error, steps under way finish. Idempotent."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Serves until `stop` or cancellation; however it ends, every open stream has ended.

        Raises:
            ExecutorError: the model runner died.
            InvariantError: the core broke; nothing it says can be trusted any more.
            RuntimeError: it has been run before.
        """
        if self._crew is not None:
            raise RuntimeError("an engine runs once")
        crew = self._crew = Crew(self._executor, self._clock, self._wake)
        crew.start()
        reason, core_is_sound = _STOPPED, True
        self._set_timer()
        try:
            while not self._stopping:
                await self._wake.wait()
                self._wake.clear()
                self._turn(crew)
        except ExecutorError as error:
            reason = error.message
            raise
        except Exception:
            reason, core_is_sound = "the server has failed", False
            _LOG.exception("the engine stops: its core broke")
            if self._last_calls is not None:
                self._last_calls.dump()
            raise
        finally:
            self._closed = reason
            self._stopping = True
            try:
                self._fail_open_streams(reason, core_is_sound)
            finally:
                self._alarm.set(None)
                crew.finish()
                with anyio.move_on_after(self._stop_limit_s, shield=True):
                    await crew.ended()
                    if core_is_sound:
                        self._commit_what_is_open(crew, reason)

    # -- boundaries --------------------------------------------------------------------------------------------

    def _take_input(self) -> None:
        """An input has reached the core: a boundary follows if a plan could be opened."""
        if self._desk.can_plan:
            self._wanted = True
            self._wake.set()

    def _turn(self, crew: Crew) -> None:
        if self._broken is not None:
            raise self._broken
        for move in crew.moves():
            self._take_in_move(move)
            self._take_input()
        for step in crew.steps():
            self._complete(crew, step)
        crew.check()
        self._expire()
        if self._wanted and not self._stopping:
            self._wanted = False
            self._dispatch(crew, self._desk.plan())
        self._set_timer()

    def _dispatch(self, crew: Crew, plans: list[Plan]) -> None:
        """After a boundary: the threads are given what the core decided."""
        if self._last_calls is not None:
            self._desk.check()
        for plan in plans:
            for request, index, _ in plan.admitted:
                self._waiting.leave(request)
                if index == 0 and self._observer is not None:
                    self._observer.admitted(request)
            crew.run_step(plan, self._audience.admit(plan))
        for transfer in self._desk.take_transfers():
            crew.move(transfer)

    def _complete(self, crew: Crew, done: StepDone) -> None:
        """Commits a step and delivers what the commit accepted."""
        plan = self._desk.open_plans[0]
        heard = self._hear(plan, done.outcome)
        if self._observer is not None:
            self._observer.stepped(plan.num_tokens, (done.ended - done.started) / 1e9)
        self._wanted = False
        outcome, plans = self._desk.commit(heard.results, done.started, done.ended)
        self._dispatch(crew, plans)
        self._audience.deliver(outcome, heard)

    def _hear(self, plan: Plan, outcome: Sampled | ExecutorError) -> Heard:
        if isinstance(outcome, ExecutorError):
            return self._audience.hear_failure(outcome.message)
        heard = self._audience.hear(plan, outcome)
        if self._recorder is not None:
            self._recorder.sampled(plan.step, outcome.tokens)
        return heard

    def _take_in_move(self, done: MoveDone) -> None:
        ok = not isinstance(done.outcome, ExecutorError)
        if not ok:
            _LOG.warning("a transfer of blocks failed, and is computed instead: %s", done.outcome)
        self._desk.transfer_done(done.job.id, done.started, done.ended, ok=ok)
        if self._observer is not None:
            seconds = (done.ended - done.started) / 1e9
            self._observer.moved(len(done.job.frames), seconds, out=done.job.out, ok=ok)

    # -- time --------------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        """Lets the core take notice of a timer that is due."""
        timer = self._desk.next_timer()
        if timer is None or timer > self._clock():
            return
        for request in self._desk.expire():
            self._waiting.leave(request)
            self._audience.end(request, Finish.DEADLINE)
        self._take_input()

    def _set_timer(self) -> None:
        """Sees to a turn when the core's next timer is due."""
        if self._crew is not None and self._closed is None:
            self._alarm.set(self._desk.next_timer())

    # -- ends --------------------------------------------------------------------------------------------------

    def _abort(self, stream: Stream) -> None:
        try:
            self._desk.abort(stream.request_id)
        except InvariantError as error:
            self._broken = error
            self._wake.set()
            return
        self._waiting.leave(stream.request_id)
        self._audience.end(stream.request_id, Finish.ABORTED)
        self._take_input()

    def _fail_open_streams(self, reason: str, core_is_sound: bool) -> None:
        requests = self._audience.fail_all(reason)
        self._waiting.clear()
        if core_is_sound:
            for request in requests:
                self._desk.abort(request)

    def _commit_what_is_open(self, crew: Crew, reason: str) -> None:
        """After the threads have stopped: results of aborted requests, and steps that never ran, leave nothing held."""
        done = {step.job[0].step: step for step in crew.steps()}
        for plan in self._desk.open_plans:
            step = done.get(plan.step)
            if step is not None:
                heard = self._hear(plan, step.outcome)
                self._desk.commit(heard.results, step.started, step.ended)
            else:
                now = self._clock()
                self._desk.commit(StepFailed(reason), now, now)
        for move in crew.moves():
            self._take_in_move(move)
