"""What the load client costs and how late it is with 500 streams open: `python benchmarks/load_client.py [--json FILE]`.

A bare server in another process sends every open stream a token each 25 ms; requests come every 16 ms and have 320 tokens, so that 500 are open.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
from multiprocessing.connection import Connection
from pathlib import Path

import anyio
import numpy as np

from traces.client.drive import Driver
from traces.client.measure import honesty, latencies, throughput
from traces.client.outcomes import Outcomes, State
from traces.client.prompts import Prompts, Yardstick
from traces.client.target import find_target
from traces.schema import TraceRequest

TICK_S = 0.025
TOKENS = 320
EVERY_NS = 16_000_000
REQUESTS = 1000


def _event(text: object) -> bytes:
    data = f"data: {text if isinstance(text, str) else json.dumps(text)}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


TOKEN = _event({"choices": [{"index": 0, "text": "word ", "finish_reason": None}]})
END = (
    _event({"choices": [{"index": 0, "text": "word", "finish_reason": "length"}]})
    + _event({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": TOKENS}})
    + _event("[DONE]")
    + b"0\r\n\r\n"
)


class _Stream(asyncio.Protocol):
    def __init__(self, active: dict[asyncio.Transport, int]) -> None:
        self.active = active

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"POST"):
            self.transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            self.active[self.transport] = TOKENS

    def connection_lost(self, exc: Exception | None) -> None:
        self.active.pop(self.transport, None)


async def _serve(port: Connection) -> None:
    active: dict[asyncio.Transport, int] = {}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Stream(active), "127.0.0.1", 0)
    port.send(server.sockets[0].getsockname()[1])
    due = loop.time()
    while True:
        due += TICK_S
        await asyncio.sleep(max(0, due - loop.time()))
        for transport, left in list(active.items()):
            transport.write(TOKEN if left > 1 else END)
            if left > 1:
                active[transport] = left - 1
            else:
                del active[transport]


def server(port: Connection) -> None:
    anyio.run(_serve, port, backend_options={"use_uvloop": True})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=server, args=(there,), daemon=True)
    process.start()
    target = find_target(
        f"127.0.0.1:{here.recv()}", endpoint="completions", model="stub", api_key=None, ignore_eos=True, temperature=0.0, timeout_s=60.0,
    )  # fmt: skip
    prompts = Prompts(Yardstick(per_word=1.0, offset=0.0, source="given"), 0, 0)
    rows = [TraceRequest(1, EVERY_NS * i, 200, TOKENS) for i in range(REQUESTS)]
    driver = Driver(target, prompts, Outcomes(), timeout_s=60.0)
    before = resource.getrusage(resource.RUSAGE_SELF)
    anyio.run(driver.run, rows, backend_options={"use_uvloop": True})
    after = resource.getrusage(resource.RUSAGE_SELF)
    process.kill()
    outcomes = driver.outcomes
    assert outcomes.count(State.DONE) == REQUESTS, outcomes.failures()
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    speed = throughput(outcomes, driver.end_ns, driver.num_connections)
    late, tpot = honesty(outcomes).late_ms, latencies(outcomes).tpot
    figures = {
        "client_most_open": speed.most_open,
        "client_events_per_s": outcomes.num_events * 1e9 / driver.end_ns,
        "client_cpu_us_per_event": 1e6 * cpu_s / outcomes.num_events,
        "client_late_p50_ms": late.p50,
        "client_late_p99_ms": late.p99,
        "client_late_max_ms": late.max,
        "client_tpot_error_p50_ms": abs(tpot.p50 - 1e3 * TICK_S) if tpot.p50 else None,
    }
    for name, value in figures.items():
        print(f"{name:28} {np.round(value, 3)}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
