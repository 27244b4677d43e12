"""Runs are powers of two, aligned in their part of the arena, never overlap, and are found wherever one is free."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.buddy import Buddy, run_for


def parts(total):
    """(start, size) of the powers of two that the arena is cut into, largest first."""
    found, at = [], 0
    for bit in reversed(range(total.bit_length())):
        if total >> bit & 1:
            found.append((at, 1 << bit))
            at += 1 << bit
    return found


def places(total, length):
    """Every address where a run of `length` may lie."""
    return [
        at
        for start, size in parts(total)
        for at in range(start, start + size, length)
        if size >= length
    ]


@pytest.mark.parametrize(("size", "length"), [(1, 1), (2, 2), (3, 4), (1024, 1024), (1025, 2048)])
def test_a_run_is_the_next_power_of_two(size, length):
    assert run_for(size) == length


@given(
    st.integers(1, 70),
    st.lists(st.one_of(st.integers(1, 40), st.integers(-20, -1)), max_size=40),
)
def test_takes_and_gives_keep_to_the_rule(total, calls):
    """Positive: take so many. Negative: give back one that is held."""
    buddy, taken, held = Buddy(total), [False] * total, []
    for call in calls:
        if call > 0:
            length = run_for(call)
            free = [a for a in places(total, length) if not any(taken[a : a + length])]
            address = buddy.take(call)
            assert (address is None) == (not free)
            if address is not None:
                assert address in free
                taken[address : address + length] = [True] * length
                held.append((address, call))
        elif held:
            address, size = held.pop(call % len(held))
            buddy.give(address, size)
            taken[address : address + run_for(size)] = [False] * run_for(size)
        buddy.check_invariants()
        assert buddy.free == taken.count(False)
    for address, size in held:
        buddy.give(address, size)
    assert buddy.take(buddy.largest) == 0
