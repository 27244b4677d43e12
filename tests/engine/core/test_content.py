"""Keys of blocks: tokens, or ids of trace blocks, at any two block sizes."""

import numpy as np
import pytest

from engine.core.content import RowContents, TokenContent, TraceContent


def contents(block_size: int, content: TokenContent | TraceContent, num_prompt: int) -> RowContents:
    rows = RowContents(block_size)
    rows.open(0, content, "", num_prompt)
    return rows


def test_generated_tokens_of_a_trace_have_no_key_though_the_last_id_reaches_over_them():
    """The last trace block, partly filled, has an id in some traces."""
    ids = TraceContent(np.array([5, 6]), 8)
    rows = contents(4, ids, num_prompt=11)
    assert rows.num_keys(0, 11) == 2
    assert rows.num_keys(0, 16) == 2
    assert rows.ends(0, 2)


@pytest.mark.parametrize(
    ("block", "expected"), [(2, [5, 5, 6, 6, 7]), (4, [5, 6]), (3, [5, 6, 7]), (8, [6]), (16, [])]
)
def test_a_block_is_named_by_the_trace_block_that_holds_its_last_position(block, expected):
    rows = contents(block, TraceContent(np.array([5, 6, 7]), 4), num_prompt=11)
    count = rows.num_keys(0, 11)
    assert rows.keys(0, 0, count)[:, 0].tolist() == expected


def test_positions_without_an_id_have_no_key():
    """Some traces give no id to a partly filled last block."""
    rows = contents(2, TraceContent(np.array([5]), 4), num_prompt=7)
    assert rows.num_keys(0, 7) == 2


def test_tokens_that_a_row_generates_continue_its_keys():
    rows = contents(2, TokenContent(np.array([1, 2, 3], np.int32)), num_prompt=3)
    assert rows.num_keys(0, 3) == 1
    for position in range(3, 130):
        rows.accept(np.array([0]), np.array([position]), np.array([position]))
    assert rows.num_keys(0, 130) == 65
    assert not rows.ends(0, 65)
    assert rows.keys(0, 0, 2).tolist() == [[1, 2], [3, 3]]
    assert rows.keys(0, 64, 65).tolist() == [[128, 129]]


def test_a_row_used_again_keeps_nothing_of_what_it_held():
    rows = contents(2, TokenContent(np.array([1, 2, 3, 4], np.int32)), num_prompt=4)
    rows.close(0)
    assert rows.num_keys(0, 4) == 0
    rows.open(0, TokenContent(np.array([9], np.int32)), "b", 1)
    rows.accept(np.array([0]), np.array([1]), np.array([8]))
    assert rows.keys(0, 0, rows.num_keys(0, 2)).tolist() == [[9, 8]]
    assert rows.salts[0] == "b"


def test_a_fork_starts_with_its_parents_tokens_and_goes_its_own_way():
    rows = contents(2, TokenContent(np.array([1, 2, 3], np.int32)), num_prompt=3)
    rows.fork(0, 5, 3)
    rows.accept(np.array([0, 5]), np.array([3, 3]), np.array([7, 8]))
    assert rows.keys(0, 0, 2).tolist() == [[1, 2], [3, 7]]
    assert rows.keys(5, 0, 2).tolist() == [[1, 2], [3, 8]]
