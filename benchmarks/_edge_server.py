"""The serving process of `benchmarks/gateway.py`: Kilburn around a scripted model, or a bare `StreamingResponse`, in one uvicorn.

Shares a file of 64-bit integers with the client: how fast to step, and when each step was complete, on the clock that all
processes of a machine share. A token's text is the number of its step, so a client knows from the text alone when the token was
made. Answers questions about itself on its standard output, one line of JSON for each line on its standard input.
"""

import argparse
import asyncio
import gc
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from benchmarks._edge_shared import FIRST_DONE, HOLD, NUM_STEPS, PACE, shared_file
from engine.chat import ChatTemplate
from engine.core.config import CoreConfig
from engine.core.plan import Plan
from engine.executor import NewSequence, Sampled
from engine.loop import Engine
from engine.scripted import ScriptedExecutor
from engine.tokenizer import Codec
from engine.vocabularies import byte_letters
from engine.weights.tokenizer_data import TokenizerData
from gateway.config import GatewayConfig
from gateway.engine import Served
from gateway.server import Http, Server, bind, http_config, run, url_of

FIRST_PIECE = 259
MAX_BATCH = 2048


def piece(step: int) -> bytes:
    """The text of each token of a step."""
    return b" %05d" % step


def codec() -> Codec:
    """Bytes as tokens, and a token for each step."""
    letters = byte_letters()
    tokens = ["<|end|>", "<|start|>", "<|pad|>", *(letters[value] for value in range(256))]
    tokens += ["".join(letters[value] for value in piece(step)) for step in range(NUM_STEPS)]
    types = [3] * 3 + [1] * (len(tokens) - 3)
    return Codec(
        TokenizerData(
            model="gpt2",
            pre_tokenizer="gpt-2",
            tokens=tokens,
            types=types,
            merges=[],
            scores=[],
            bos_id=1,
            eos_id=0,
            eot_id=None,
            unknown_id=None,
            add_bos=False,
            add_space_prefix=False,
            chat_template=None,
        )
    )


class Metronome(ScriptedExecutor):
    """Steps at the pace that the shared file asks for, on a fixed grid, and notes when each step was complete."""

    def __init__(self, shared: np.ndarray, vocab_size: int) -> None:
        super().__init__(
            num_blocks=1 << 16,
            max_context=4096,
            vocab_size=vocab_size,
            verify=False,
        )
        self._shared = shared
        self._tick = 0

    def execute(self, plan: Plan, new: Sequence[NewSequence]) -> Sampled:
        """A step of the script, at its time."""
        self._wait()
        sampled = super().execute(plan, new)
        step = plan.step % NUM_STEPS
        tokens = np.full(len(sampled.tokens), FIRST_PIECE + step, np.int32)
        tokens.flags.writeable = False
        self._shared[FIRST_DONE + step] = time.monotonic_ns()
        return Sampled(tokens)

    def _wait(self) -> None:
        while (pace := int(self._shared[PACE])) == HOLD:
            time.sleep(0.001)
        if pace == 0:
            return
        now = time.monotonic_ns()
        self._tick = self._tick + pace if self._tick + pace > now else now
        time.sleep((self._tick - now) / 1e9)


def kilburn(shared: np.ndarray) -> Served:
    """The gateway, the engine and the core as `kilburn serve` puts them together."""
    text = codec()
    config = msgspec.convert(
        {
            "memory": {"num_blocks": 1 << 16},
            "scheduler": {"max_context": 4096, "token_budget": 1 << 14, "max_batch": MAX_BATCH},
        },
        CoreConfig,
    )
    engine = Engine(
        Metronome(shared, text.vocab_size),
        config,
        text,
        model_name="scripted",
        max_queue_requests=1 << 14,
    )
    return Served(engine, text, ChatTemplate(text, None))


def bare(shared: np.ndarray) -> Starlette:
    """Writes given chunks to as many clients as there are, from when it may, and does nothing else."""
    chunks: list[bytes] = []
    here, wanted = 0, 0
    everyone = anyio.Event()

    async def prepare(request: Request) -> Response:
        nonlocal here, wanted, everyone
        said = await request.json()
        chunks[:] = [chunk.encode() for chunk in said["chunks"]]
        here, wanted, everyone = 0, said["clients"], anyio.Event()
        return Response()

    async def events() -> AsyncIterator[bytes]:
        for chunk in chunks:
            await anyio.lowlevel.checkpoint()  # as whoever waits for a token must
            yield chunk

    async def stream(request: Request) -> Response:
        nonlocal here
        await request.body()
        here += 1
        if here == wanted:
            while shared[PACE] == HOLD:  # noqa: ASYNC110 (set by another process)
                await anyio.sleep(0.001)
            everyone.set()
        await everyone.wait()
        return StreamingResponse(events(), media_type="text/event-stream")

    return Starlette(
        routes=[
            Route("/prepare", prepare, methods=["POST"]),
            Route("/v1/completions", stream, methods=["POST"]),
        ]
    )


def counts(loop: asyncio.AbstractEventLoop) -> dict[str, int]:
    """What this process holds now."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "tasks": len(asyncio.all_tasks(loop)),
        "fds": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "threads": threading.active_count(),
        "cpu_us": time.process_time_ns() // 1000,
        "rss_kib": int(status["VmRSS"].split()[0]),
    }


async def serve(kind: str, path: Path) -> None:
    """Serves until the client's end of standard input closes."""
    config = GatewayConfig(port=0, drain_s=0.0, first_byte_s=0.05)
    listener = bind(config)
    loop = asyncio.get_running_loop()
    stopped = anyio.Event()

    def converse() -> None:
        for _ in sys.stdin:
            answer: dict[str, int] = {}
            done = threading.Event()

            def ask(answer: dict[str, int] = answer, done: threading.Event = done) -> None:
                answer |= counts(loop)
                done.set()

            loop.call_soon_threadsafe(ask)
            done.wait()
            print(json.dumps(answer), flush=True)
        loop.call_soon_threadsafe(stopped.set)

    def ready() -> None:
        print(url_of(listener), flush=True)
        threading.Thread(target=converse, daemon=True).start()

    async with anyio.create_task_group() as group:
        if kind == "kilburn":
            server = Server(config, kilburn(shared_file(path)))

            async def stop() -> None:
                await stopped.wait()
                server.cut()

            group.start_soon(stop)
            failure = await server.run(listener, ready)
            if failure is not None:
                raise failure
        else:
            http = Http(http_config(config, bare(shared_file(path))))
            http.on_ready = ready
            group.start_soon(http.serve, [listener])
            await stopped.wait()
            http.should_exit = True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["kilburn", "starlette"])
    parser.add_argument("shared", type=Path)
    given = parser.parse_args()
    run(serve, given.kind, given.shared)
