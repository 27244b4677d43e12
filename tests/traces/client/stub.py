"""A server of OpenAI's stream format with timings that are known to the millisecond, and with every fault that a client must tell apart.

What it does with a request is written in the request's `model`: `fast`, `500`, `cut`, `error`, `silent`, `empty`, `garbage`, `nousage`,
`stale` (a connection is dropped at its second request).
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def _now() -> float:
    """Seconds on the event loop's clock, which is `time.monotonic` where time is real."""
    return asyncio.get_running_loop().time()


class Stub:
    """Answers after `ttft_s`, then a token every `gap_s`; while `stalled_until` lies ahead nothing is written at all."""

    def __init__(self, ttft_s: float = 0.0, gap_s: float = 0.0, keep_alive: bool = True) -> None:
        self.ttft_s = ttft_s
        self.gap_s = gap_s
        self.keep_alive = keep_alive
        self.stalls: list[tuple[float, float]] = []
        """(from, to) in seconds after the first request."""
        self.arrivals: list[float] = []
        self.prompts: list[str] = []
        self.written_ns: list[list[int]] = []
        """By request, in order of arrival: when each token was written, on the clock that clients read too."""
        self.port = 0
        self.stale = False
        self._first: float | None = None

    async def _unstalled(self) -> None:
        assert self._first is not None
        for start, end in self.stalls:
            now = _now() - self._first
            if start <= now < end:
                await asyncio.sleep(end - now)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer) and self.keep_alive:
                if self.stale:
                    await reader.readuntil(b"\r\n\r\n")
                    writer.transport.abort()
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _exchange(self, reader, writer) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
        )  # fmt: skip
        body = json.loads(await reader.readexactly(size)) if size else {}
        path = head.split()[1].decode()
        if path == "/v1/models":
            return self._plain(writer, 200, {"data": [{"id": "fast"}]})
        if path not in ("/v1/completions", "/v1/chat/completions"):
            return self._plain(writer, 404, {"error": {"message": "no such path"}})
        if not body.get("stream"):
            words = len(body["prompt"].split())
            return self._plain(
                writer, 200, {"usage": {"prompt_tokens": words + 1, "completion_tokens": 1}}
            )
        return await self._stream(writer, body)

    def _plain(self, writer, status: int, answer: object) -> bool:
        text = json.dumps(answer).encode()
        writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
        return True

    async def _stream(self, writer, body) -> bool:
        if self._first is None:
            self._first = _now()
        self.arrivals.append(_now() - self._first)
        self.prompts.append(body["prompt"])
        written: list[int] = []
        self.written_ns.append(written)
        kind, tokens = body["model"], body["max_tokens"]
        self.stale = kind == "stale"
        if kind == "500":
            return self._plain(writer, 500, {"error": {"message": "the model is on fire"}})
        if kind == "silent":
            await asyncio.sleep(30)
        await self._unstalled()
        await asyncio.sleep(self.ttft_s)
        await self._unstalled()
        close = "" if self.keep_alive else "Connection: close\r\n"
        writer.write(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{close}\r\n".encode())
        if kind == "garbage":
            self._event(writer, "this is no JSON")
        if kind != "empty":
            for i in range(tokens):
                if i:
                    await asyncio.sleep(self.gap_s)
                    await self._unstalled()
                if kind == "cut" and i == tokens // 2:
                    writer.transport.abort()
                    return False
                if kind == "error" and i == tokens // 2:
                    self._event(writer, json.dumps({"error": {"message": "the worker died"}}))
                    break
                end = "length" if i == tokens - 1 else None
                written.append(round(_now() * 1e9))
                self._event(
                    writer,
                    json.dumps({"choices": [{"index": 0, "text": "word ", "finish_reason": end}]}),
                )
        if kind != "nousage":
            usage = {"prompt_tokens": len(body["prompt"].split()) + 1, "completion_tokens": tokens}
            self._event(writer, json.dumps({"choices": [], "usage": usage}))
        if kind != "error":
            self._event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return True

    def _event(self, writer, data: str) -> None:
        text = f"data: {data}\n\n".encode()
        writer.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")


@contextmanager
def running(stub: Stub) -> Iterator[str]:
    """The address of the stub, served in a thread."""
    loop = asyncio.new_event_loop()
    up = threading.Event()

    async def main() -> None:
        server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
        stub.port = server.sockets[0].getsockname()[1]
        up.set()
        try:
            async with server:
                await server.serve_forever()
        except asyncio.CancelledError:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    task = loop.create_task(main())
    thread = threading.Thread(target=lambda: loop.run_until_complete(task))
    thread.start()
    assert up.wait(60)
    try:
        yield f"http://127.0.0.1:{stub.port}"
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(60)
        loop.close()
