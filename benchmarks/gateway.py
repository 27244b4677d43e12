"""What the edge adds to a token, and how many events it can send: a scripted model, real sockets, the client in another process.

Both processes run on the same two cores. Prints a table beside its targets; `--json FILE` writes one flat object.

- *Added latency of a token*: from the end of the executor's step that made it, in the server's worker thread, to the return of the
  client's `recv` that brought the last byte of its text, both on the system's monotonic clock. All tokens of a step are made at once,
  as a batch is, so most of it is the way of the others that go first; the client's own waiting is part of it.
- *Peak*: streams that all end at the same length, model as fast as it goes; events over the time from the first to the last byte. Rounds
  alternate with a bare `StreamingResponse` in the same uvicorn that writes the very chunks of a Kilburn stream to as many clients and
  yields to the event loop before each, as whoever waits for a token must. The ratio is the median of the rounds'. A round counts only if
  each token came as an event of its own. The processes' CPU time is given too, the engine and its scripted model included: a
  machine that others use distorts it less.
- *Idle streams*: growth of the resident set over streams that have begun and wait for their next token.
- *Leavers*: clients that connect and leave at every stage; at the end the server holds as many tasks, descriptors and frames as before.
"""

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks._edge_client import PATH, Crowd, Reader, request, streamed
from benchmarks._edge_shared import FIRST_DONE, HOLD, PACE, shared_file

LOADS = ((500, 20), (2_000, 5))
"""Streams, and tokens a second of each."""
TARGETS = {"events_vs_starlette_ratio": 0.6}


class ServerProcess:
    """A server in a process of its own, and its answers about itself."""

    def __init__(self, kind: str, shared: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks._edge_server", kind, str(shared)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=Path(__file__).resolve().parents[1],
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        host, port = self.url.removeprefix("http://").rsplit(":", 1)
        self.address = (host, int(port))

    def counts(self) -> dict[str, int]:
        """What it holds now."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("counts\n")
        found: dict[str, int] = json.loads(self._process.stdout.readline())
        return found

    def get(self, path: str) -> dict[str, int]:
        """The JSON at `path`."""
        with urllib.request.urlopen(self.url + path, timeout=20) as response:
            found: dict[str, int] = json.load(response)
        return found

    def wait_until(self, **health: int) -> dict[str, int]:
        """Asks `/health` until it says `health`; the whole of what it said."""
        end = time.monotonic() + 30
        while True:
            said = self.get("/health")
            if all(said[name] == value for name, value in health.items()):
                return said
            if time.monotonic() > end:
                raise TimeoutError(f"waited for {health}, got {said}")
            time.sleep(0.02)

    def settled(self) -> dict[str, int]:
        """What it holds when nothing runs and connections that were closed are gone."""
        total = self.get("/health")["total_blocks"]
        self.wait_until(running=0, waiting=0, free_blocks=total)
        before = self.counts()
        while True:
            time.sleep(0.3)
            after = self.counts()
            if (before["fds"], before["tasks"]) == (after["fds"], after["tasks"]):
                return after
            before = after

    def end(self) -> None:
        """Stops it.

        Raises:
            RuntimeError: it did not exit with 0.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait(20) != 0:
            raise RuntimeError(f"the server exited with {self._process.returncode}")


class Bench:
    """The servers and the file that they share with this process."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "shared"
        self.shared = shared_file(self._path)

    @contextlib.contextmanager
    def server(self, kind: str) -> Iterator[ServerProcess]:
        """A server, ended at the end."""
        server = ServerProcess(kind, self._path)
        try:
            yield server
        finally:
            server.end()

    def pace(self, interval_s: float) -> None:
        """Sets the time between steps; 0 for as fast as it goes, `HOLD` for none."""
        self.shared[PACE] = HOLD if interval_s == HOLD else round(interval_s * 1e9)

    def added_ms(self, server: ServerProcess, num: int, rate: int, seconds: float) -> np.ndarray:
        """Added latency of each token in a window in which `num` streams run at `rate` tokens/s."""
        self.pace(1 / rate)
        crowd = Crowd(server.address)
        crowd.join([streamed(f"stream {i}", 4000) for i in range(num)])
        while crowd.started() < num:
            crowd.read(1)
        crowd.read_for(1.0)
        begin = time.monotonic_ns()
        crowd.read_for(seconds)
        end = time.monotonic_ns()
        done = np.array(self.shared[FIRST_DONE:])
        added = []
        for reader in crowd.readers.values():
            steps, times = reader.arrivals()
            made, came = done[steps], np.array(times)
            inside = (made >= begin) & (made < end - 500_000_000)
            added.append((came - made)[inside])
        crowd.leave()
        server.settled()
        steps = int(((done >= begin) & (done < end - 500_000_000)).sum())
        if sum(map(len, added)) != num * steps:
            raise RuntimeError(f"{sum(map(len, added))} tokens came of {num * steps}")
        kept = steps / (rate * (seconds - 0.5))
        if kept < 0.95:
            print(f"the machine is too busy: steps kept {kept:.0%} of the pace of {rate} a second")
        return np.concatenate(added) / 1e6

    def peak(
        self, server: ServerProcess, requests: list[bytes]
    ) -> tuple[int, float, float, list[Reader]]:
        """Of a server that may write as fast as it can: events, events/s, microseconds of its CPU for each; and what came."""
        crowd = Crowd(server.address)
        self.pace(HOLD)
        crowd.join(requests)
        time.sleep(0.3)
        before = server.counts()
        self.pace(0)
        crowd.read_all()
        cpu_us = server.counts()["cpu_us"] - before["cpu_us"]
        readers = list(crowd.readers.values())
        events = sum(b"".join(reader.pieces).count(b'"text"') for reader in readers)
        begin = min(_first_body(reader) for reader in readers)
        end = max(reader.times[-1] for reader in readers)
        crowd.leave()
        return events, events / ((end - begin) / 1e9), cpu_us / events, readers

    def against_starlette(self, num: int, num_tokens: int, rounds: int) -> dict[str, float]:
        """Peak events/s of both, turn and turn about."""
        ours, theirs, lone, costs = [], [], [], []
        with self.server("kilburn") as kilburn, self.server("starlette") as starlette:
            for turn in range(rounds + 1):
                events, rate, cpu, readers = self.peak(
                    kilburn, [streamed(f"{turn} {i}", num_tokens) for i in range(num)]
                )
                kilburn.settled()
                chunks = readers[0].chunks()
                body = {"clients": num, "chunks": [chunk.decode() for chunk in chunks]}
                urllib.request.urlopen(
                    urllib.request.Request(
                        starlette.url + "/prepare", json.dumps(body).encode(), method="POST"
                    )
                ).close()
                _, bare, bare_cpu, written = self.peak(starlette, [request(PATH, {})] * num)
                if any(reader.chunks() != chunks for reader in written[:10]):
                    raise RuntimeError("the bare server wrote other chunks")
                if turn:  # the first warms both up
                    lone.append(events / (num * num_tokens))
                    ours.append(rate)
                    costs.append((cpu, bare_cpu))
                    theirs.append(bare)
        return {
            "events_vs_starlette_ratio": statistics.median(
                a / b for a, b in zip(ours, theirs, strict=True)
            ),
            "events_per_s": statistics.median(ours),
            "starlette_events_per_s": statistics.median(theirs),
            "cpu_us_per_event": statistics.median(a for a, _ in costs),
            "starlette_cpu_us_per_event": statistics.median(b for _, b in costs),
            "uncoalesced_share": min(lone),
        }

    def idle(self, server: ServerProcess, num: int) -> float:
        """KiB of resident memory a stream that has begun and waits."""
        before = server.counts()
        crowd = Crowd(server.address)
        self.pace(0.5)
        crowd.join([streamed(f"idle {i}", 4000) for i in range(num)])
        while crowd.started() < num:
            crowd.read(1)
        self.pace(HOLD)
        crowd.read_for(1.5)
        after = server.counts()
        crowd.leave()
        self.pace(0.001)
        server.settled()
        return (after["rss_kib"] - before["rss_kib"]) / num

    def leavers(self, server: ServerProcess, num: int) -> dict[str, float]:
        """Clients that connect and leave: when connected, within the request, after it, and within the answer."""
        self.pace(0.002)
        before = server.settled()
        rng = random.Random(1)
        content = streamed("leaves", 400)
        crowd = Crowd(server.address)
        waiting: list[tuple[Reader, int]] = []
        for i in range(num):
            stage = i % 4
            if stage == 3:
                waiting += [(reader, rng.randrange(1, 6)) for reader in crowd.join([content])]
            else:
                with socket.create_connection(server.address) as connection:
                    connection.sendall((b"", content[: len(content) // 2], content)[stage])
            crowd.read(0)
            waiting = self._part(crowd, waiting, most=64)
        while waiting:
            crowd.read(1)
            waiting = self._part(crowd, waiting, most=0)
        crowd.leave()
        after = server.settled()
        for held in ("tasks", "fds", "threads"):
            if after[held] != before[held]:
                raise RuntimeError(f"{held}: {before[held]} before, {after[held]} afterwards")
        return {"leavers": num, "leavers_kib_grown": after["rss_kib"] - before["rss_kib"]}

    def _part(
        self, crowd: Crowd, waiting: list[tuple[Reader, int]], most: int
    ) -> list[tuple[Reader, int]]:
        """Closes the connections that have got as many pieces as they waited for."""
        while True:
            stay = []
            for reader, pieces in waiting:
                if len(reader.pieces) < pieces:
                    stay.append((reader, pieces))
                else:
                    crowd.drop(reader)
            if len(stay) <= most or not most:
                return stay
            crowd.read(1)
            waiting = stay


def _first_body(reader: Reader) -> int:
    """When the first piece with text came."""
    return next(
        when for when, piece in zip(reader.times, reader.pieces, strict=True) if b'"text"' in piece
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="a tenth of it, for a first look")
    parser.add_argument("--only", choices=["latency", "peak", "idle", "leavers"])
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])

    def wanted(name: str) -> bool:
        return args.only in (None, name)

    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        if wanted("latency"):
            with bench.server("kilburn") as server:
                for num, rate in LOADS:
                    added = bench.added_ms(server, num, rate, 2 if args.quick else 10)
                    for q in (50, 99):
                        figures[f"added_ms_p{q}_{num}"] = float(np.percentile(added, q))
        if wanted("peak"):
            tokens, rounds = (32, 2) if args.quick else (128, 7)
            figures |= bench.against_starlette(200, tokens, rounds)
        if wanted("idle") or wanted("leavers"):
            with bench.server("kilburn") as server:
                if wanted("idle"):
                    bench.idle(server, 50)
                    figures["kib_per_idle_stream"] = bench.idle(server, 2_000)
                if wanted("leavers"):
                    figures |= bench.leavers(server, 1_000 if args.quick else 10_000)
    for name, value in figures.items():
        target = f"target {TARGETS[name]:g}" if name in TARGETS else ""
        print(f"{name:32} {value:12.2f}   {target}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
