"""The client of `benchmarks/gateway.py`: raw sockets under one epoll, so that it costs the machine little and measures the server.

Reading notes the time and keeps the bytes; what they say is looked at when all is over.
"""

import json
import re
import select
import socket
import time
from itertools import accumulate

import numpy as np

_TEXT = re.compile(rb'"text":"((?: \d+)+)"')
END = b"0\r\n\r\n"
PATH = "/v1/completions"


def request(path: str, body: dict[str, object]) -> bytes:
    """A POST as bytes."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def streamed(prompt: str, max_tokens: int) -> bytes:
    """The request of a stream that runs for `max_tokens`."""
    return request(
        PATH, {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    )


class Reader:
    """One connection, what came on it, and when."""

    __slots__ = ("pieces", "socket", "times")

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pieces: list[bytes] = []
        self.times: list[int] = []

    def chunks(self) -> list[bytes]:
        """The HTTP chunks of the response's body, which must be complete."""
        rest = b"".join(self.pieces).partition(b"\r\n\r\n")[2]
        found = []
        while True:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            if length == 0:
                return found
            found.append(rest[:length])
            rest = rest[length + 2 :]

    def arrivals(self) -> tuple[list[int], list[int]]:
        """Steps of the tokens that came, and when the event of each was there to its last byte of text."""
        whole = b"".join(self.pieces)
        ends = list(accumulate(map(len, self.pieces)))
        found = [
            (int(step), match.end()) for match in _TEXT.finditer(whole) for step in match[1].split()
        ]
        at = np.searchsorted(ends, [end for _, end in found])
        return [step for step, _ in found], [self.times[i] for i in at]


class Crowd:
    """Many readers under one epoll. A context, which closes all."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._poll = select.epoll()
        self.readers: dict[int, Reader] = {}

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *raised: object) -> None:
        self.leave()

    def join(self, requests: list[bytes]) -> list[Reader]:
        """Opens a connection for each of `requests` and sends it; reads meanwhile what comes."""
        joined = []
        for i, content in enumerate(requests):
            reader = Reader(self._address)
            reader.socket.sendall(content)
            reader.socket.setblocking(False)
            self.readers[reader.socket.fileno()] = reader
            self._poll.register(reader.socket, select.EPOLLIN)
            joined.append(reader)
            if i % 20 == 19:
                self.read(0)
        return joined

    def read(self, timeout_s: float) -> list[Reader]:
        """Reads what there is, or what comes first; the readers whose response is complete."""
        over = []
        for fileno, _ in self._poll.poll(timeout_s):
            reader = self.readers[fileno]
            piece = reader.socket.recv(16384)
            reader.times.append(time.monotonic_ns())
            reader.pieces.append(piece)
            if not piece or piece.endswith(END):
                over.append(reader)
        return over

    def read_for(self, seconds: float) -> None:
        """Reads for a while."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.read(left)

    def read_all(self, limit_s: float = 60) -> None:
        """Reads until each response is complete."""
        end, num_open = time.monotonic() + limit_s, len(self.readers)
        while num_open:
            num_open -= len(self.read(1))
            if time.monotonic() > end:
                raise TimeoutError(f"{num_open} streams did not end within {limit_s} s")

    def started(self) -> int:
        """Readers that have received something."""
        return sum(bool(reader.pieces) for reader in self.readers.values())

    def drop(self, reader: Reader) -> None:
        """Closes one."""
        del self.readers[reader.socket.fileno()]
        reader.socket.close()

    def leave(self) -> None:
        """Closes all."""
        for reader in self.readers.values():
            reader.socket.close()
        self.readers.clear()
        self._poll.close()
