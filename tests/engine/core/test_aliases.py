"""Aliases: equal content under equal names, and only that; what a replay rebuilds from them is equal where the content was."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.core.aliases import DenseAliases, PlainAliases, replayed_tokens
from engine.core.content import TokenContent
from engine.core.ids import RequestId
from engine.core.plan import Request

SIZE = 3
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14)


def request(number: int, tokens) -> Request:
    content = TokenContent(np.array(tokens, np.int32))
    return Request(RequestId(number), len(tokens), content=content)


def column(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=6))
def test_blocks_are_equal_in_a_replay_exactly_where_they_were(sequences):
    """Prompts and generated tokens, in any order of rows, through dense ids and back through plain ones."""
    dense, plain = DenseAliases(SIZE), PlainAliases(SIZE)
    told: list[list[int]] = []
    for row, (prompt, _) in enumerate(sequences):
        ids = dense.prompt(request(row, prompt))
        replayed = replayed_tokens(len(prompt), SIZE, ids)
        assert plain.prompt(request(row, replayed)) == ids
        for aliases in (dense, plain):
            aliases.begin(RequestId(row), row)
            aliases.forget(RequestId(row))
        told.append(replayed.tolist())
    for step in range(max(len(answer) for _, answer in sequences)):
        rows = [row for row, (_, answer) in enumerate(sequences) if step < len(answer)]
        tokens = column(*[sequences[row][1][step] for row in rows])
        positions = column(*[len(sequences[row][0]) + step for row in rows])
        blocks = dense.accept(column(*rows), positions, tokens)
        said = np.zeros(len(rows), np.int32)
        for place, name in blocks:
            said[place] = name
        assert plain.accept(column(*rows), positions, said) == blocks
        for row, token in zip(rows, said.tolist(), strict=True):
            told[row].append(token)
    real = [[*prompt, *answer] for prompt, answer in sequences]
    for one in range(len(real)):
        for other in range(len(real)):
            for end in range(SIZE, min(len(real[one]), len(real[other])) + 1, SIZE):
                equal = real[one][:end] == real[other][:end]
                assert (told[one][:end] == told[other][:end]) == equal


def test_row_without_content_completes_no_block():
    for aliases in (DenseAliases(2), PlainAliases(2)):
        aliases.prompt(request(0, [1, 2]))
        aliases.begin(RequestId(0), 20)
        assert aliases.prompt(Request(RequestId(1), 2)) is None
        aliases.begin(RequestId(1), 20)
        assert aliases.accept(column(20), column(3), column(5)) == ()


def test_sequences_of_a_request_begin_with_the_same_prompt():
    aliases = DenseAliases(2)
    aliases.prompt(request(0, [1, 2, 3]))
    aliases.begin(RequestId(0), 0)
    aliases.begin(RequestId(0), 1)
    aliases.forget(RequestId(0))
    assert aliases.accept(column(0, 1), column(3, 3), column(7, 8)) == ((0, 1), (1, 2))
    assert aliases.accept(column(0, 1), column(4, 4), column(9, 9)) == ()


def test_names_are_numbered_as_they_appear():
    aliases = DenseAliases(2)
    assert [aliases.number(name) for name in ("b", "", "b", "a")] == [0, 1, 0, 2]
