"""Searches against trying every size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.plan.search import fewest, greatest


def drive(search, holds):
    asked = []
    told = None
    while True:
        try:
            ask = search.send(told)
        except StopIteration as end:
            return end.value, asked
        assert ask.sizes
        assert len(set(ask.sizes)) == len(ask.sizes)
        asked += ask.sizes
        told = {size: holds[size - 1] for size in ask.sizes}


@given(st.integers(1, 200), st.integers(0, 200))
def test_on_a_step_the_search_finds_what_trying_all_sizes_finds(most, step):
    up = [size > step for size in range(1, most + 1)]
    found, asked = drive(fewest(most), up)
    assert found.answer == (step + 1 if step < most else None)
    assert found.exceptions == []
    assert len(set(asked)) <= 2 * most.bit_length() + 5
    down = [size <= step for size in range(1, most + 1)]
    found, asked = drive(greatest(most), down)
    assert found.answer == (min(step, most) or None)
    assert found.exceptions == []
    assert len(set(asked)) <= 2 * most.bit_length() + 5


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_whatever_holds_the_answer_is_safe_and_exceptions_are_told(holds):
    most = len(holds)
    found, asked = drive(fewest(most), holds)
    if found.answer is None:
        assert not holds[-1]
    else:
        assert all(holds[found.answer - 1 : found.answer + 2])
        assert found.answer == 1 or not holds[found.answer - 2]
    tried = set(asked)
    smallest = min((size for size in tried if holds[size - 1]), default=most)
    assert found.exceptions == sorted(s for s in tried if s > smallest and not holds[s - 1])


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_the_most_users_are_safe_too(holds):
    found, asked = drive(greatest(len(holds)), holds)
    if found.answer is None:
        assert not holds[0] or not all(holds[:3])
    else:
        at = found.answer
        assert all(holds[max(0, at - 3) : at])
    tried = set(asked)
    largest = max((size for size in tried if holds[size - 1]), default=0)
    assert found.exceptions == sorted(s for s in tried if s < largest and not holds[s - 1])


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_no_size_holds(most):
    assert drive(fewest(most), [False] * most)[0].answer is None
    assert drive(greatest(most), [False] * most)[0].answer is None


@given(st.integers(1, 200), st.integers(0, 200), st.integers(1, 200))
def test_what_is_known_to_fail_saves_steps_and_changes_no_answer(most, step, known):
    least = min(known, step + 1, most)
    up = [size > step for size in range(1, most + 1)]
    found, asked = drive(fewest(most, least), up)
    assert found == drive(fewest(most), up)[0]
    assert len(set(asked)) <= 2 * most.bit_length() + 5
    assert min(asked) >= least - 1
