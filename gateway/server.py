"""Runs the application under uvicorn beside the engine: listen, serve, drain, end.

Owns the socket, the signals and the order of shutdown; knows nothing of what requests say.

On the first SIGTERM or SIGINT: the listening socket closes, new requests on open connections get 503, running ones go on for
`drain_s`; what is left then ends with an error event or a 503. A second signal ends it at once. If the engine fails, its streams
have ended with an error; the server delivers that, stops, and `serve` raises what the engine raised.
"""

import errno
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final, TypeVar

import anyio
import uvicorn
from starlette.types import ASGIApp

from engine.core.errors import ConfigError
from gateway.app import create_app
from gateway.config import GatewayConfig
from gateway.engine import Served
from gateway.errors import ShuttingDownError
from gateway.heads import BoundedProtocol
from gateway.streams import OpenStreams

Result = TypeVar("Result")

MOST_UNSENT_BYTES: Final = 64 * 1024
"""Of one connection in the system's buffer; without a bound that grows to megabytes before a slow reader is noticed."""
SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)
)
LAST_WORDS_S: Final = 5
"""How long ended streams have to reach their clients before connections are closed."""


def bind(config: GatewayConfig) -> socket.socket:
    """A listening socket on the configured address; the caller owns it. Cheap, so do it before the model is loaded.

    Raises:
        ConfigError: the address cannot be listened on; the message says why and what to do.
    """
    where = f"{config.host}:{config.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"cannot listen on {where}: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bound_what_the_system_holds(listener, config.send_timeout_s)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {config.port} on {config.host} is in use; stop what listens there, or choose another with --port"
            ) from error
        raise ConfigError(f"cannot listen on {where}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def _bound_what_the_system_holds(listener: socket.socket, patience_s: float) -> None:
    """Of each connection: how much is buffered unsent, and how long a vanished client is waited for. Where the system can."""
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MOST_UNSENT_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        patience_ms = max(1, round(1000 * patience_s))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)


def url_of(listener: socket.socket) -> str:
    """Where clients reach `listener`, without a trailing slash."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def http_config(config: GatewayConfig, app: ASGIApp) -> uvicorn.Config:
    """How uvicorn serves `app`."""

    class Protocol(BoundedProtocol):
        patience_s = config.send_timeout_s

    return uvicorn.Config(
        app,
        http=Protocol,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=config.keep_alive_s,
        h11_max_incomplete_event_size=config.max_header_bytes,
        timeout_graceful_shutdown=int(config.drain_s) + LAST_WORDS_S + 1,
    )


class Server:
    """One engine behind one listening socket. `run` serves; `stop` and `cut` may be called while it does, from the same thread."""

    def __init__(self, config: GatewayConfig, served: Served) -> None:
        self._config = config
        self._engine = served.engine
        self._streams = OpenStreams(served.engine)
        self._failure: Exception | None = None
        self._stopping = anyio.Event()
        self._cutting = anyio.Event()
        app = create_app(config, served, streams=self._streams)
        self._http = Http(http_config(config, app))

    async def run(self, listener: socket.socket, on_ready: Callable[[], None]) -> Exception | None:
        """Serves on `listener`, which it closes, until stopped: what the engine raised, after its streams' errors were delivered.

        Calls `on_ready` once requests are taken.
        """
        self._http.on_ready = on_ready
        async with anyio.create_task_group() as group:
            group.start_soon(self._run_engine)
            group.start_soon(self._end_in_time)
            await self._http.serve(sockets=[listener])
            group.cancel_scope.cancel()
        return self._failure

    def stop(self) -> None:
        """Begins to drain. Any number of times."""
        self._streams.drain()
        self._stopping.set()
        self._http.should_exit = True

    def cut(self) -> None:
        """Ends what runs, now."""
        self.stop()
        self._streams.cut()
        self._cutting.set()

    async def _run_engine(self) -> None:
        try:
            await self._engine.run()
        except Exception as error:
            self._failure = error
            self.cut()

    async def _end_in_time(self) -> None:
        await self._stopping.wait()
        with anyio.move_on_after(self._config.drain_s):
            await self._cutting.wait()
        self.cut()
        self._http.refuse_unfinished()
        await anyio.sleep(LAST_WORDS_S)
        self._http.reset_all()


def run(main: Callable[..., Awaitable[Result]], *args: object) -> Result:
    """Runs `main` on the event loop that servers run on: uvloop where it is installed."""
    options = {"use_uvloop": find_spec("uvloop") is not None}
    return anyio.run(main, *args, backend_options=options)


async def serve(
    config: GatewayConfig,
    served: Served,
    listener: socket.socket,
    on_ready: Callable[[], None] = lambda: None,
    on_hangup: Callable[[], None] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, then drains. From the main thread only.

    SIGHUP calls `on_hangup`; without one it is a SIGTERM, as when the terminal is closed.

    Raises:
        Exception: what the engine raised.
    """
    server = Server(config, served)
    async with anyio.create_task_group() as group:
        group.start_soon(_watch_signals, server, on_hangup)
        failure = await server.run(listener, on_ready)
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _watch_signals(server: Server, on_hangup: Callable[[], None] | None) -> None:
    with anyio.open_signal_receiver(*SIGNALS) as signals:
        first = True
        async for number in signals:
            if number not in (signal.SIGTERM, signal.SIGINT) and on_hangup is not None:
                on_hangup()
                continue
            if first:
                server.stop()
            else:
                server.cut()
            first = False


class Http(uvicorn.Server):
    """uvicorn without signal handlers of its own, with word of when it serves, and with a way to end what will not end by itself."""

    on_ready: Callable[[], None]

    def refuse_unfinished(self) -> None:
        """Ends the connections on which a request is still coming in."""
        for connection in list(self.server_state.connections):
            assert isinstance(connection, BoundedProtocol)
            connection.refuse_unfinished(
                ShuttingDownError("the server shut down before the request was complete")
            )

    def reset_all(self) -> None:
        """Drops every connection: its client does not take what it was told."""
        for connection in list(self.server_state.connections):
            assert isinstance(connection, BoundedProtocol)
            connection.reset()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leaves signals to `serve`."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts listening, then says so."""
        await super().startup(sockets)
        self.on_ready()
