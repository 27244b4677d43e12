"""The real server on the real model: how soon after its start it says its first token, and how `/health` answers at full load.

Everything is seen from outside. `first_token_s`: from starting the process to the first token of a request that has waited at the
socket; machine code and converted weights are in the cache (a start before the timed ones puts them there), as they are from the second start on.
`health_p50_ms` and `health_p99_ms`: `/health` asked twenty times a second, on a new connection each time, while 32 streams of another process
decode and a prompt of 1,000 tokens takes the place of each that ends. `loaded_events_s` says how full the load was. Every process shares the cores.
"""

import argparse
import http.client
import json
import multiprocessing
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent
STREAMS, PROMPT, TOKENS, PERIOD_S, WARM_S = 32, 1000, (40, 160), 0.05, 6.0
HOST = "127.0.0.1"


@contextmanager
def server(*arguments: str) -> Iterator[tuple[int, float]]:
    """A running `kilburn serve`: (port, when its process was started)."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "kilburn", "serve", "--port", str(port), *arguments]
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with status {process.returncode}")
            try:
                socket.create_connection((HOST, port)).close()
            except ConnectionRefusedError:
                time.sleep(0.005)
            else:
                break
        yield port, begin
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def stream(port: int, prompt: list[int], max_tokens: int) -> Iterator[bytes]:
    """The events of one streamed completion."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection(HOST, port, timeout=120)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body | {"model": model(port)}))
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {answer.read(500)!r}")
        for line in answer:
            if line.startswith(b"data: {"):
                yield line
    finally:
        connection.close()


def model(port: int) -> str:
    """What the server calls its model."""
    connection = http.client.HTTPConnection(HOST, port, timeout=120)
    connection.request("GET", "/v1/models")
    (one,) = json.loads(connection.getresponse().read())["data"]
    connection.close()
    return str(one["id"])


def first_token(arguments: list[str]) -> float:
    """Seconds from the start of a server to its first token."""
    with server(*arguments) as (port, begin):
        next(stream(port, [504, 253, 216], 4))
        return time.perf_counter() - begin


def load(port: int, seed: int, told: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    """Keeps `STREAMS` streams going until it is terminated; tells the time of each second's end and its events."""
    events = [0] * STREAMS

    def follow(own: int) -> None:
        random = Random(seed + own)
        while True:
            prompt = [random.randrange(3, 40_000) for _ in range(PROMPT if events[own] else 128)]
            for _ in stream(port, prompt, random.randint(*TOKENS)):
                events[own] += 1

    for own in range(STREAMS):
        threading.Thread(target=follow, args=(own,), daemon=True).start()
    while True:
        time.sleep(1)
        told.put((time.perf_counter(), sum(events)))


def probe(port: int, seconds: float) -> list[float]:
    """Milliseconds of each `/health`; one that is late puts the next off."""
    times = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        connection = http.client.HTTPConnection(HOST, port, timeout=30)
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"/health answered {answer.status}")
        taken = time.perf_counter() - begin
        times.append(1000 * taken)
        time.sleep(max(0.0, PERIOD_S - taken))
    return times


def health(arguments: list[str], seconds: float) -> dict[str, float]:
    """Figures of `/health` under load, and of the load."""
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    with server(*arguments) as (port, _):
        model(port)
        busy = context.Process(target=load, args=(port, 0, told), daemon=True)
        busy.start()
        try:
            time.sleep(WARM_S)
            while not told.empty():
                told.get()
            times = probe(port, seconds)
            rates = [told.get() for _ in range(told.qsize())]
        finally:
            busy.kill()
            busy.join()
    (begin, before), (end, after) = rates[0], rates[-1]
    times.sort()
    return {
        "health_p50_ms": statistics.median(times),
        "health_p99_ms": times[int(0.99 * len(times))],
        "health_max_ms": times[-1],
        "health_probes": float(len(times)),
        "loaded_events_s": (after - before) / (end - begin),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="how long /health is asked")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options, arguments = parser.parse_known_args()
    first_token(arguments)
    starts = [first_token(arguments) for _ in range(options.starts)]
    figures = {"first_token_s": statistics.median(starts)} | health(arguments, options.seconds)
    for name, value in figures.items():
        print(f"{name:20} {value:9.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
