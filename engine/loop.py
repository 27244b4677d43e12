"""Engine: drives the core with a real model and serves many streams. The only place where live time enters.

One task works the core through a `Desk`; the model runs in one worker thread; step n + 1 is planned while step n runs.
Knows requests, tokens and streams; knows no HTTP, no tensors, and takes no scheduling decision.

The order of things, which the twin repeats: a submission or an abort reaches the core at the moment it is made. A boundary
follows each step that ends, and each input for which a plan could be opened at once: commit, then plan. A token is decoded
before its commit, so that a stop is known to the core in time, and delivered after, if the commit accepted it.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio
import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.core.config import CoreConfig
from engine.core.errors import (
    CapacityError,
    ConfigError,
    ExecutorError,
    InvariantError,
    RequestError,
)
from engine.core.frames import FrameMap
from engine.core.ids import RequestId
from engine.core.plan import (
    Finish,
    MemoryReport,
    Outcome,
    Plan,
    Rejected,
    Request,
    Results,
    StepFailed,
)
from engine.core.scheduler import Scheduler
from engine.desk import CallRecorder, Desk, Watcher
from engine.executor import Executor, NewSequence, Sampled
from engine.requests import FinishReason, Generation
from engine.streams import Codec, Stream
from engine.worker import Died, StepDone, Worker

_LOG = logging.getLogger(__name__)

_REASONS = {
    Finish.LENGTH: FinishReason.LENGTH,
    Finish.STOP: FinishReason.STOP,
    Finish.FAILED: FinishReason.ERROR,
    Finish.ABORTED: FinishReason.ABORT,
}

_STOPPED = "the server is shutting down"


class Recorder(CallRecorder, Protocol):
    """Where a live run goes. Must neither raise nor block."""

    def prompt(self, request: RequestId, tokens: NDArray[np.int32]) -> None:
        """Content of a request, just before its submission is recorded."""
        ...

    def sampled(self, step: int, tokens: NDArray[np.int32]) -> None:
        """Tokens of a step, just before its commit is recorded."""
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
    ) -> None:
        """Sets up; nothing runs before `run`.

        Args:
            executor: the model; closing it is its owner's business, after `run` has returned.
            config: of the core; its pool must be the executor's.
            codec: tokens to text.
            model_name: as clients know it.
            clock: integer nanoseconds.
            recorder: where the run is recorded. Without one the core keeps no decision log.
            max_queue_requests: most requests that wait for admission; more are refused.
            max_queue_tokens: most prompt tokens of waiting requests together. A single longer prompt may wait alone.
            stop_limit_s: how long a stopping engine waits for the steps under way.

        Raises:
            ConfigError: `config` asks for a pool or a context that the executor does not have.
        """
        _check_fit(executor, config)
        if recorder is None:
            quiet = msgspec.structs.replace(config.scheduler, log=False)
            config = msgspec.structs.replace(config, scheduler=quiet)
        self.model_name = model_name
        self.config = config
        self._executor = executor
        self._codec = codec
        self._clock = clock
        self._recorder = recorder
        self._max_queue_requests = max_queue_requests
        self._max_queue_tokens = max_queue_tokens
        self._stop_limit_s = stop_limit_s
        self._desk = Desk(Scheduler(config), clock, recorder)
        self._streams: dict[int, Stream] = {}
        self._waiting: dict[int, int] = {}
        """Prompt lengths of requests that were never admitted."""
        self._waiting_tokens = 0
        self._next_id = 0
        self._worker: Worker | None = None
        self._done: deque[StepDone | Died] = deque()
        self._wake = asyncio.Event()
        self._stopping = False
        self._closed: str | None = None
        self._broken: InvariantError | None = None

    # -- what the gateway calls --------------------------------------------------------------------------------

    @property
    def max_context(self) -> int:
        """Most tokens, prompt and output together, of one request."""
        return self.config.scheduler.max_context

    @property
    def num_open(self) -> int:
        """Streams that have not ended."""
        return len(self._streams)

    @property
    def num_preemptions(self) -> int:
        """Preemptions so far."""
        return self._desk.num_preemptions

    def memory(self) -> MemoryReport:
        """The pool and the queues now."""
        return self._desk.memory()

    def frames(self) -> FrameMap:
        """What lies in each frame of the pool now."""
        return self._desk.frames()

    def statuses(self) -> dict[RequestId, str]:
        """Where each open request stands, in the words of `Status`, or `waiting`."""
        known = self._desk.statuses()
        return {
            RequestId(request): known[RequestId(request)].value if request in known else "waiting"
            for request in self._streams
        }

    def watch(self, watcher: Watcher | None) -> None:
        """Tells `watcher` all decisions from now on, in place of whom it told before."""
        self._desk.watch(watcher)

    def open(self, generation: Generation) -> Stream:
        """Submits a generation now; its stream. Whoever opens a stream reads it to its end or aborts it.

        Raises:
            RequestError: it can never run here; `reason` is the core's code, `param` the field at fault.
            CapacityError: too much is waiting already, or the engine has stopped.
        """
        if self._closed is not None or self._stopping:
            raise CapacityError(self._closed or _STOPPED)
        prompt = generation.prompt
        if (
            len(prompt)
            and not 0 <= int(prompt.min()) <= int(prompt.max()) < self._executor.vocab_size
        ):
            raise RequestError(
                f"the prompt has a token id outside 0 to {self._executor.vocab_size - 1}",
                param="prompt",
                code="token_out_of_range",
            )
        self._check_queue(len(prompt))
        request = Request(RequestId(self._next_id), len(prompt), generation.max_tokens)
        stream = Stream(request.id, generation, self._codec, self._abort)
        if self._recorder is not None:
            self._recorder.prompt(request.id, prompt)
        rejected = self._desk.submit(request)
        self._next_id += 1
        if rejected is not None:
            raise RequestError(
                rejected.message, param=_param_at_fault(rejected, generation), code=rejected.code
            )
        self._streams[request.id] = stream
        self._waiting[request.id] = len(prompt)
        self._waiting_tokens += len(prompt)
        self._wake_for_input()
        return stream

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
        if self._worker is not None:
            raise RuntimeError("an engine runs once")
        self._worker = worker = Worker(self._executor, self._clock, self._step_done)
        worker.start()
        reason, core_is_sound = _STOPPED, True
        try:
            while not self._stopping:
                await self._wake.wait()
                self._wake.clear()
                self._turn()
        except ExecutorError as error:
            reason = error.message
            raise
        except Exception:
            reason, core_is_sound = "the server has failed", False
            _LOG.exception("the engine stops: its core broke")
            raise
        finally:
            self._closed = reason
            try:
                self._fail_open_streams(reason, core_is_sound)
            finally:
                with anyio.move_on_after(self._stop_limit_s, shield=True):
                    await worker.stop()
                    if core_is_sound:
                        self._commit_what_is_open(reason)

    # -- boundaries --------------------------------------------------------------------------------------------

    def _step_done(self, done: StepDone | Died) -> None:
        self._done.append(done)
        self._wake.set()

    def _wake_for_input(self) -> None:
        if self._desk.can_plan:
            self._wake.set()

    def _turn(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._done:
            while self._done:
                self._complete(self._done.popleft())
        elif self._desk.can_plan and not self._stopping:
            self._dispatch(self._desk.plan())

    def _dispatch(self, plans: list[Plan]) -> None:
        assert self._worker is not None
        for plan in plans:
            new = []
            for request, _, row in plan.admitted:
                generation = self._streams[request].generation
                new.append(NewSequence(row, request, generation.prompt, generation.sampling))
                self._leave_queue(request)
            self._worker.put(plan, new)

    def _complete(self, done: StepDone | Died) -> None:
        """Commits a step and delivers what the commit accepted."""
        if isinstance(done, Died):
            raise ExecutorError("the model runner died") from done.cause
        plan = self._desk.open_plans[0]
        if isinstance(done.outcome, ExecutorError):
            message = done.outcome.message
            outcome, plans = self._desk.commit(StepFailed(message), done.started, done.ended)
            self._dispatch(plans)
            self._deliver(outcome, [], dict.fromkeys(outcome.ended_requests.tolist(), message))
            return
        results, tentative, errors = self._decode(plan, done.outcome)
        outcome, plans = self._desk.commit(results, done.started, done.ended)
        self._dispatch(plans)
        self._deliver(outcome, tentative, errors)

    def _decode(self, plan: Plan, sampled: Sampled) -> tuple[Results, list[Stream], dict[int, str]]:
        """(results with stops, streams that got a token which the commit must still accept, messages of failed requests)."""
        rows, requests = plan.rows[plan.samples], plan.requests[plan.samples].tolist()
        if len(sampled.tokens) != len(rows):
            raise ExecutorError(
                f"step {plan.step} sampled {len(sampled.tokens)} tokens where {len(rows)} were asked for"
            )
        if self._recorder is not None:
            self._recorder.sampled(plan.step, sampled.tokens)
        stops = np.zeros(len(rows), np.int8)
        errors: dict[int, str] = {}
        for index, message in sampled.failures:
            stops[index] = Finish.FAILED
            errors[requests[index]] = message
        tentative = []
        for index, (request, token) in enumerate(
            zip(requests, sampled.tokens.tolist(), strict=True)
        ):
            stream = self._streams.get(request)
            if stream is None or request in errors:
                continue
            tentative.append(stream)
            if stream.sampled(token):
                stops[index] = Finish.STOP
        stops.flags.writeable = False
        return Results(rows, sampled.tokens, stops), tentative, errors

    def _deliver(self, outcome: Outcome, tentative: list[Stream], errors: dict[int, str]) -> None:
        accepted = outcome.requests.tolist()
        for request in accepted:
            self._streams[request].accept()
        if len(accepted) < len(tentative):
            kept = set(accepted)
            for stream in tentative:
                if stream.request_id not in kept:
                    stream.discard()
        for request, reason in zip(
            outcome.ended_requests.tolist(), outcome.reasons.tolist(), strict=True
        ):
            self._leave_queue(request)
            self._streams.pop(request).end(_REASONS[Finish(reason)], errors.get(request))

    # -- ends --------------------------------------------------------------------------------------------------

    def _abort(self, stream: Stream) -> None:
        try:
            self._desk.abort(stream.request_id)
        except InvariantError as error:
            self._broken = error
            self._wake.set()
            return
        self._leave_queue(stream.request_id)
        del self._streams[stream.request_id]
        stream.end(FinishReason.ABORT)
        self._wake_for_input()

    def _leave_queue(self, request: int) -> None:
        self._waiting_tokens -= self._waiting.pop(request, 0)

    def _fail_open_streams(self, reason: str, core_is_sound: bool) -> None:
        streams, self._streams = self._streams, {}
        self._waiting.clear()
        self._waiting_tokens = 0
        for stream in streams.values():
            stream.end(FinishReason.ERROR, reason)
        if core_is_sound:
            for request in streams:
                self._desk.abort(RequestId(request))

    def _commit_what_is_open(self, reason: str) -> None:
        """After the worker has stopped: results of aborted requests, and steps that never ran, leave nothing held."""
        done = {step.step: step for step in self._done if isinstance(step, StepDone)}
        self._done.clear()
        for plan in self._desk.open_plans:
            step = done.get(plan.step)
            if step is not None and isinstance(step.outcome, Sampled):
                results, _, _ = self._decode(plan, step.outcome)
                self._desk.commit(results, step.started, step.ended)
            else:
                now = self._clock()
                self._desk.commit(StepFailed(reason), now, now)

    # -- refusals ----------------------------------------------------------------------------------------------

    def _check_queue(self, num_prompt: int) -> None:
        if len(self._waiting) >= self._max_queue_requests:
            raise CapacityError(
                f"{len(self._waiting)} requests are waiting already; try again later"
            )
        if self._waiting and self._waiting_tokens + num_prompt > self._max_queue_tokens:
            raise CapacityError(
                f"{self._waiting_tokens} prompt tokens are waiting already; try again later"
            )


def _param_at_fault(rejected: Rejected, generation: Generation) -> str:
    if rejected.code == "bad_max_tokens":
        return "max_tokens"
    if rejected.code == "empty_prompt" or generation.max_tokens in (None, 1):
        return "prompt"
    return "max_tokens"


def _check_fit(executor: Executor, config: CoreConfig) -> None:
    memory = config.memory
    if (memory.num_blocks, memory.block_size) != (executor.num_blocks, executor.block_size):
        raise ConfigError(
            f"the core is set to {memory.num_blocks} blocks of {memory.block_size} positions, "
            f"but the model runner has {executor.num_blocks} of {executor.block_size}"
        )
    if config.scheduler.max_context > executor.max_context:
        raise ConfigError(
            f"max_context is {config.scheduler.max_context}, but the model holds at most {executor.max_context}"
        )
