"""A crowd of clients for the live engine, of whom many leave early. Counts what each of them was told."""

import random
from collections import Counter

import anyio
import anyio.lowlevel
import numpy as np
from msgspec import Struct, field

from engine.core.errors import CapacityError, RequestError
from engine.loop import Engine
from engine.requests import Delta, FinishReason
from tests.engine.toy import generation, spelled
from tests.reference.scripted import scripted_answer

VOCABULARY = 30


class Told(Struct):
    """What the clients of a crowd saw."""

    finishes: Counter[FinishReason] = field(default_factory=Counter)
    """Of choices."""
    refused: int = 0
    left: int = 0
    """Clients that went away in the middle, and did not see every end."""
    cached_tokens: int = 0
    wrong: list[str] = field(default_factory=list)


class Habits(Struct, frozen=True):
    """What a crowd is like."""

    most_tokens: int = 20
    most_choices: int = 3
    deadlines: bool = False
    """Some requests have one, of 1 to 30 ms."""


class Client:
    """One client: asks, reads, and may abort, disconnect, or read slowly."""

    def __init__(self, engine: Engine, rng: random.Random, told: Told, habits: Habits) -> None:
        self._engine = engine
        self._told = told
        most = habits.most_tokens
        self._max_tokens = rng.randint(1, most)
        prefix = [rng.choice([3, 4])] * rng.choice([0, 0, 6, 9, 12])
        self._prompt = [*prefix, *(rng.randrange(1, 30) for _ in range(rng.randint(1, most)))]
        self._prompt = self._prompt[: max(most, 1)]
        self._num_choices = rng.choice([1, 1, rng.randint(1, habits.most_choices)])
        self._stop = ("<7>",) if rng.random() < 0.5 else ()
        self._fields = {
            "ignore_eos": rng.random() < 0.5,
            "num_sequences": self._num_choices,
            "salt": rng.choice(["", "", "", "pepper"]),
            "tenant": rng.choice(["left", "right"]),
            "weight": 1.0,
            "priority": rng.choice([0, 0, 1]),
        }
        if habits.deadlines and rng.random() < 0.2:
            self._fields["deadline_ms"] = rng.randint(1, 30)
        self._habit = rng.choice(["reads", "reads", "reads", "aborts", "leaves", "dawdles"])
        self._patience = rng.randint(0, 4)

    async def run(self) -> None:
        told = self._told
        try:
            stream = self._engine.open(
                generation(self._prompt, self._max_tokens, self._stop, **self._fields)
            )
        except (CapacityError, RequestError):
            told.refused += 1
            return
        seen: list[Delta] = []
        if self._habit == "aborts" and self._patience == 0:
            stream.abort()
        try:
            async for delta in stream:
                seen.append(delta)
                if len(seen) == self._patience:
                    if self._habit == "aborts":
                        stream.abort()
                    elif self._habit == "leaves":
                        break
                if self._habit == "dawdles":
                    for _ in range(5):
                        await anyio.lowlevel.checkpoint()
        finally:
            stream.abort()
        told.cached_tokens += stream.num_cached
        if stream.num_cached >= len(self._prompt):
            told.wrong.append("nothing of the prompt was computed")
        ends = Counter(delta.index for delta in seen if delta.finish is not None)
        if len(ends) < self._num_choices:
            told.left += 1
            if self._habit != "leaves":
                told.wrong.append("a reader was not told every end")
        for index in range(self._num_choices):
            self._judge(index, [delta for delta in seen if delta.index == index])

    def _judge(self, index: int, deltas: list[Delta]) -> None:
        told = self._told
        finishes = [delta.finish for delta in deltas if delta.finish is not None]
        tokens = sum(delta.num_tokens for delta in deltas)
        text = "".join(delta.text for delta in deltas)
        told.finishes.update(finishes)
        if len(finishes) > 1 or (finishes and deltas[-1].finish is None):
            told.wrong.append(f"told the end {len(finishes)} times, or not at last")
        if finishes == [FinishReason.LENGTH] and tokens != self._max_tokens:
            told.wrong.append(f"{tokens} tokens where {self._max_tokens} were asked for")
        prompt = np.array(self._prompt, np.int32)
        answer = scripted_answer(prompt, self._max_tokens, VOCABULARY, index)
        if not spelled(answer).startswith(text):
            told.wrong.append(f"{text} is not the answer {spelled(answer)}")
        if finishes == [FinishReason.LENGTH] and text != spelled(answer):
            told.wrong.append(f"{text} is not all of the answer {spelled(answer)}")


async def let_in(
    engine: Engine, clients: int, seed: int, habits: Habits | None = None, most_open: int = 40
) -> Told:
    """Runs a crowd in bursts of random size; returns when every client has gone."""
    rng, told = random.Random(seed), Told()
    async with anyio.create_task_group() as tasks:
        left = clients
        while left:
            burst = min(left, rng.randint(1, most_open))
            left -= burst
            for _ in range(burst):
                tasks.start_soon(Client(engine, rng, told, habits or Habits()).run)
            await anyio.lowlevel.checkpoint()
            enough = rng.randint(5, most_open)
            while engine.num_open > enough:
                await anyio.lowlevel.checkpoint()
    return told
