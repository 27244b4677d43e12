"""A real server on a loopback socket, in a thread of its own, for tests that must see bytes and disconnects."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import msgspec

from gateway.config import GatewayConfig
from gateway.engine import RunningEngine
from gateway.server import Server, bind, url_of


class Live:
    """A running server, seen from the test's thread."""

    def __init__(self, url: str, port: int, changed: threading.Condition) -> None:
        self.url = url
        self.port = port
        self.changed = changed


def gateway_config(**settings: object) -> GatewayConfig:
    return msgspec.convert({"port": 0, "drain_s": 0.0, **settings}, GatewayConfig)


@contextmanager
def served(engine: RunningEngine, **settings: object) -> Iterator[str]:
    """The base URL of a server of `engine`, which is stopped at the end; its failure is raised here."""
    config = gateway_config(**settings)
    listener = bind(config)
    url = url_of(listener)
    ready = threading.Event()
    stopper: list[tuple[Server, object]] = []
    failures: list[BaseException] = []

    async def main() -> None:
        server = Server(config, engine)
        async with anyio.from_thread.BlockingPortal() as portal:
            stopper.append((server, portal))
            await server.run(listener, ready.set)

    def thread_main() -> None:
        try:
            anyio.run(main)
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=thread_main)
    thread.start()
    ready.wait(20)
    try:
        yield url
    finally:
        server, portal = stopper[0]
        if thread.is_alive():
            portal.start_task_soon(server.stop)
        thread.join(20)
    if failures:
        raise failures[0]
