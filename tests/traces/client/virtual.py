"""An event loop in which time passes only when there is nothing else to do, and connections are in memory: whatever is measured in it is exact, however
slow the machine.
"""

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class _Patient(selectors.DefaultSelector):
    """Instead of waiting it lets the loop's time pass."""

    passes: Callable[[float], None]

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everybody waits and no timer is set")
            self.passes(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Begins at second 0. Whatever connects to anywhere talks to `serve`."""

    def __init__(self, serve: Serve) -> None:
        selector = _Patient()
        selector.passes = self.pass_time
        self._now_s = 0.0
        self._serve = serve
        super().__init__(selector)

    def time(self) -> float:
        """Seconds."""
        return self._now_s

    def time_ns(self) -> int:
        """Nanoseconds."""
        return round(self._now_s * 1e9)

    def pass_time(self, seconds: float) -> None:
        """In a callback: as if it had taken so long."""
        self._now_s += seconds

    async def create_connection(self, factory: Any, *where: Any, **options: Any) -> Any:  # type: ignore[override]
        """See asyncio."""
        await asyncio.sleep(0)
        reader = asyncio.StreamReader(loop=self)
        there = asyncio.StreamReaderProtocol(reader, self._serve, loop=self)
        here = factory()
        near, far = _End(self, here), _End(self, there)
        near.peer, far.peer = far, near
        there.connection_made(far)
        here.connection_made(near)
        return near, here


class _End(asyncio.Transport):
    """One end of a connection: what is written comes out of the other one in the same order, at once."""

    peer: "_End"

    def __init__(self, loop: VirtualLoop, protocol: Any) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._closing = False

    def write(self, data: Any) -> None:
        if not self._closing:
            self._loop.call_soon(self.peer._came, bytes(data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._protocol.connection_lost, None)
            self._loop.call_soon(self.peer._left)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def _came(self, data: bytes) -> None:
        if not self._closing:
            self._protocol.data_received(data)

    def _left(self) -> None:
        if not self._closing:
            self._protocol.eof_received()
            self.close()
