"""Prompts have the length that was asked for, and begin alike exactly where the trace's block ids do."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from tests.traces.client.driving import ONE_A_WORD
from traces.client.prompts import WORDS, Prompts, Yardstick
from traces.schema import TraceRequest

BLOCK = 16


def words(prompts: Prompts, row: TraceRequest, number: int) -> list[str]:
    return " ".join(prompts.pieces(row, number)).split()


def row(num_prompt: int, ids=()) -> TraceRequest:
    return TraceRequest(1, 0, num_prompt, 5, array("q", ids))


def common(a: list[str], b: list[str]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


@given(st.integers(1, 500), st.booleans())
def test_length_is_exact_with_a_token_a_word(num_prompt, hashed):
    ids = range(-(-num_prompt // BLOCK)) if hashed else ()
    assert len(words(Prompts(ONE_A_WORD, BLOCK, 0), row(num_prompt, ids), 3)) == num_prompt


@given(st.integers(0, 6), st.integers(0, 5), st.integers(1, 15))
def test_prompts_share_what_their_blocks_share(shared, own, tail):
    first = row((shared + own) * BLOCK + tail, [*range(shared), *range(100, 100 + own)])
    second = row((shared + own) * BLOCK + tail, [*range(shared), *range(200, 200 + own)])
    prompts = Prompts(ONE_A_WORD, BLOCK, 0)
    a, b = words(prompts, first, 0), words(prompts, second, 1)
    assert common(a, b) >= shared * BLOCK
    assert common(a, b) < shared * BLOCK + 8, "what is not shared differs soon"
    assert words(prompts, first, 0) == a


def test_prompts_without_blocks_differ_from_the_start():
    prompts = Prompts(ONE_A_WORD, 0, 0)
    texts = [words(prompts, row(64), i) for i in range(50)]
    assert max(common(a, b) for i, a in enumerate(texts) for b in texts[:i]) < 4


def test_other_seed_other_words():
    texts = [words(Prompts(ONE_A_WORD, BLOCK, seed), row(64, range(4)), 0) for seed in (1, 2)]
    assert texts[0] != texts[1]


def test_yardstick_counts_what_a_template_adds():
    assert Yardstick(per_word=1.25, offset=10, source="").words(110) == 80
    assert Yardstick(per_word=1.0, offset=10, source="").words(3) == 1


def test_words_are_told_apart():
    assert len(set(WORDS)) == len(WORDS) >= 100
    assert all(word.isascii() and word.islower() for word in WORDS)
