"""What the edge asks of the live engine. Knows generations and deltas; hands maps of blocks on and reads nothing in them."""

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from engine.chat import ChatTemplate
from engine.core.frames import FrameMap
from engine.core.ids import RequestId
from engine.core.plan import MemoryReport
from engine.desk import Counters, Watcher
from engine.loop import Observer
from engine.requests import Delta, Generation
from engine.tokenizer import Codec
from gateway.tenants import Tenants


class Stream(Protocol):
    """One generation's way out of the engine, by deltas; the last one of each choice has `finish`.

    Deltas that the reader is too slow for are merged.
    """

    @property
    def request_id(self) -> RequestId:
        """The engine's number for the request."""
        ...

    @property
    def num_prompt(self) -> int:
        """Prompt length in tokens."""
        ...

    @property
    def num_cached(self) -> int:
        """Prompt tokens that the prefix cache held when the request was first admitted."""
        ...

    def listen(self, told: Callable[[], None] | None) -> None:
        """Calls `told` on the event loop when there is something to take. It must neither raise nor block."""
        ...

    def take(self) -> Delta | None:
        """The next delta; None where there is none yet, or none any more."""
        ...

    def abort(self) -> None:
        """Ends the generation if it has not ended, its last delta then being `FinishReason.ABORT`. Any number of times."""
        ...


class Engine(Protocol):
    """A model that generates for many requests at once."""

    @property
    def model_name(self) -> str:
        """What clients call the model."""
        ...

    @property
    def max_context(self) -> int:
        """Most tokens of prompt and answer together."""
        ...

    @property
    def counters(self) -> Counters:
        """What happened so far."""
        ...

    @property
    def recording(self) -> bool:
        """Whether what happens is being recorded; not any more once that has failed."""
        ...

    def open(self, generation: Generation) -> Stream:
        """Takes a request in; returns at once.

        Raises:
            RequestError: it can never be served.
            CapacityError: it cannot be served now.
        """
        ...

    def memory(self) -> MemoryReport:
        """The KV pool and the queue at this moment."""
        ...

    def frames(self) -> FrameMap:
        """What lies in each frame of the pool at this moment."""
        ...

    def statuses(self) -> Mapping[RequestId, str]:
        """Where each open request stands: `running`, `preempted`, `swapped` and the steps between; absent: it waits."""
        ...

    def observe(self, observer: Observer) -> None:
        """Tells `observer` of admissions, steps and transfers from now on."""
        ...

    def watch(self, watcher: Watcher | None) -> None:
        """Tells `watcher` all decisions from now on, in place of whom it told before."""
        ...


class RunningEngine(Engine, Protocol):
    """An engine whose work is a task that the server owns."""

    async def run(self) -> None:
        """Works until cancelled. However it ends, every open stream has ended."""
        ...


class Served(Struct, frozen=True, eq=False):
    """What a server serves, an engine and its model's way with text, and to whom."""

    engine: RunningEngine
    codec: Codec
    chat: ChatTemplate
    tenants: Tenants = Tenants()
