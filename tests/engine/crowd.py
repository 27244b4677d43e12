"""A crowd of clients for the live engine, of whom many leave early. Counts what each of them was told."""

import random
from collections import Counter

import anyio
from msgspec import Struct, field

from engine.core.errors import CapacityError, RequestError
from engine.loop import Engine
from engine.requests import FinishReason
from tests.engine.toy import generation


class Told(Struct):
    """What the clients of a crowd saw."""

    finishes: Counter[FinishReason] = field(default_factory=Counter)
    refused: int = 0
    left: int = 0
    """Clients that went away in the middle, and saw no end."""
    wrong: list[str] = field(default_factory=list)


class Client:
    """One client: asks, reads, and may abort, disconnect, or read slowly."""

    def __init__(self, engine: Engine, rng: random.Random, told: Told, most_tokens: int) -> None:
        self._engine = engine
        self._told = told
        length = rng.randint(1, most_tokens)
        self._prompt = [rng.randrange(1, 30) for _ in range(rng.randint(1, most_tokens))]
        self._max_tokens = length
        self._stop = ("<7>",) if rng.random() < 0.5 else ()
        self._ignore_eos = rng.random() < 0.5
        self._habit = rng.choice(["reads", "reads", "reads", "aborts", "leaves", "dawdles"])
        self._patience = rng.randint(0, 4)

    async def run(self) -> None:
        told = self._told
        try:
            stream = self._engine.open(
                generation(self._prompt, self._max_tokens, self._stop, self._ignore_eos)
            )
        except (CapacityError, RequestError):
            told.refused += 1
            return
        seen, tokens, deltas = [], 0, 0
        if self._habit == "aborts" and self._patience == 0:
            stream.abort()
        try:
            async for delta in stream:
                deltas += 1
                tokens += delta.num_tokens
                if delta.finish is not None:
                    seen.append(delta.finish)
                if deltas == self._patience:
                    if self._habit == "aborts":
                        stream.abort()
                    elif self._habit == "leaves":
                        break
                if self._habit == "dawdles":
                    for _ in range(5):
                        await anyio.lowlevel.checkpoint()
        finally:
            stream.abort()
        if not seen:
            told.left += 1
            if self._habit != "leaves":
                told.wrong.append("a reader was never told the end")
            return
        told.finishes[seen[0]] += 1
        if len(seen) > 1:
            told.wrong.append(f"told the end {len(seen)} times")
        if seen[0] is FinishReason.LENGTH and tokens != self._max_tokens:
            told.wrong.append(f"{tokens} tokens where {self._max_tokens} were asked for")


async def let_in(engine: Engine, clients: int, seed: int, most_tokens: int = 20) -> Told:
    """Runs a crowd in bursts of random size; returns when every client has gone."""
    rng, told = random.Random(seed), Told()
    async with anyio.create_task_group() as tasks:
        left = clients
        while left:
            burst = min(left, rng.randint(1, 40))
            left -= burst
            for _ in range(burst):
                tasks.start_soon(Client(engine, rng, told, most_tokens).run)
            await anyio.lowlevel.checkpoint()
            enough = rng.randint(5, 40)
            while engine.num_open > enough:
                await anyio.lowlevel.checkpoint()
    return told
