"""Several answers to one prompt, live: deltas say whose they are, each choice ends once, the prompt is computed once."""

import anyio.lowlevel
import numpy as np
import pytest

from engine.core.errors import ExecutorError, RequestError
from engine.requests import Delta, FinishReason
from tests.engine.gate import Gate
from tests.engine.running import running
from tests.engine.toy import core_config, generation, read, scripted, spelled, toy_engine
from tests.reference.scripted import scripted_answer

PROMPT = [3, 1, 4, 1, 5, 9]


def answer(index: int, num_tokens: int = 8) -> list[int]:
    return scripted_answer(np.array(PROMPT, np.int32), num_tokens, index=index)


def of_choice(deltas: list[Delta], index: int) -> list[Delta]:
    return [delta for delta in deltas if delta.index == index]


def text(deltas: list[Delta], index: int) -> str:
    return "".join(delta.text for delta in of_choice(deltas, index))


async def test_each_choice_is_told_apart_and_ends_once():
    config = core_config(num_blocks=32)
    engine = toy_engine(config, scripted(config))
    async with running(engine):
        stream = engine.open(generation(PROMPT, 8, num_sequences=3))
        deltas = await read(stream)
    for index in range(3):
        own = of_choice(deltas, index)
        assert text(deltas, index) == spelled(answer(index))
        assert sum(delta.num_tokens for delta in own) == 8
        assert [d.finish for d in own if d.finish] == [FinishReason.LENGTH]
        assert own[-1].finish is FinishReason.LENGTH
    assert len({text(deltas, index) for index in range(3)}) == 3
    assert stream.num_generated == 24
    assert engine.memory().held_blocks == 0


async def test_prompt_of_several_choices_is_computed_once():
    computed: list[int] = []
    config = core_config(num_blocks=32)
    engine = toy_engine(
        config, scripted(config, pace=lambda plan: computed.append(plan.num_tokens))
    )
    async with running(engine):
        await read(engine.open(generation(PROMPT, 5, num_sequences=3)))
    # The first token of each choice comes from the prompt's last position, the last one is never fed back.
    assert sum(computed) == len(PROMPT) + 3 * 4


async def test_slow_reader_gets_one_merged_delta_a_choice():
    config = core_config(num_blocks=32)
    engine = toy_engine(config, scripted(config))
    async with running(engine):
        stream = engine.open(generation(PROMPT, 8, num_sequences=3))
        while not stream.ended:
            await anyio.lowlevel.checkpoint()
        deltas = await read(stream)
    whole = [Delta(spelled(answer(i)), 8, FinishReason.LENGTH, None, i) for i in range(3)]
    assert sorted(deltas, key=lambda delta: delta.index) == whole


async def test_choices_take_turns():
    config, gate = core_config(num_blocks=32), Gate()
    engine = toy_engine(config, scripted(config, pace=gate))
    async with running(engine):
        stream = engine.open(generation(PROMPT, 3, num_sequences=3))
        turns = []
        for _ in range(2):
            gate.let_go()
            turns.append([(await anext(stream)).index for _ in range(3)])
        gate.open()
        await read(stream)
    assert turns == [[0, 1, 2], [0, 1, 2]]


async def test_choice_that_stops_leaves_the_others_alone():
    config = core_config(num_blocks=32)
    stop = f"<{answer(1)[3]}>"
    assert not any(stop in spelled(answer(i)) for i in (0, 2))
    engine = toy_engine(config, scripted(config))
    async with running(engine):
        deltas = await read(engine.open(generation(PROMPT, 8, (stop,), num_sequences=3)))
    assert text(deltas, 1) == spelled(answer(1)[:3])
    assert of_choice(deltas, 1)[-1].finish is FinishReason.STOP
    for index in (0, 2):
        assert text(deltas, index) == spelled(answer(index))


async def test_abort_ends_every_choice_that_has_not_ended():
    config, gate = core_config(num_blocks=32), Gate()
    stop = f"<{answer(1)[0]}>"
    engine = toy_engine(config, scripted(config, pace=gate))
    async with running(engine):
        stream = engine.open(generation(PROMPT, 8, (stop,), num_sequences=3))
        gate.let_go()
        first = await anext(stream)
        while not any(choice.ended for choice in stream.choices):
            await anyio.lowlevel.checkpoint()
        stream.abort()
        assert stream.ended
        gate.open()
        deltas = [first, *await read(stream)]
    ends = {delta.index: delta.finish for delta in deltas if delta.finish}
    assert ends == {0: FinishReason.ABORT, 1: FinishReason.STOP, 2: FinishReason.ABORT}
    assert engine.memory().held_blocks == 0


async def test_choices_that_never_came_into_being_share_the_fate_of_the_first():
    """The step that computes the first half of the prompt fails."""
    config = core_config(num_blocks=32, token_budget=4, max_batch=4)
    fault = {0: ExecutorError("hiccup")}
    engine = toy_engine(config, scripted(config, step_fault=lambda plan: fault.get(plan.step)))
    async with running(engine):
        deltas = await read(engine.open(generation(PROMPT, 8, num_sequences=3)))
        assert text(await read(engine.open(generation(PROMPT, 8))), 0) == spelled(answer(0))
    assert sorted((d.index, d.finish, d.error) for d in deltas) == [
        (index, FinishReason.ERROR, "hiccup") for index in range(3)
    ]


async def test_row_that_fails_ends_its_choice_alone():
    config = core_config(num_blocks=32)
    calls = iter(range(100))
    # The second token of the middle choice.
    fault = lambda request, at: "not a number" if next(calls) == 4 else None  # noqa: E731
    engine = toy_engine(config, scripted(config, row_fault=fault))
    async with running(engine):
        deltas = await read(engine.open(generation(PROMPT, 8, num_sequences=3)))
    ends = {delta.index: (delta.finish, delta.error) for delta in deltas if delta.finish}
    assert ends[1] == (FinishReason.ERROR, "not a number")
    assert ends[0] == ends[2] == (FinishReason.LENGTH, None)
    assert text(deltas, 1) == spelled(answer(1)[:1])


@pytest.mark.parametrize(("n", "message"), [(0, "between 1 and 16"), (17, "between 1 and 16")])
async def test_more_choices_than_the_batch_holds_are_refused(n, message):
    config = core_config(num_blocks=64)
    engine = toy_engine(config, scripted(config))
    with pytest.raises(RequestError, match=message) as refused:
        engine.open(generation(PROMPT, 1, num_sequences=n))
    assert (refused.value.reason, refused.value.param) == ("bad_num_sequences", "n")
