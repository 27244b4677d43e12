"""How a batch is cut into launches: every query once, every key read, and splits where a card would stand idle."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention.schedule import MAX_SPLITS, PROGRAMS_PER_SM, schedule
from kernels.attention.tiles import Tile

SMALL, LARGE = Tile(16, 64, 4, 3), Tile(128, 64, 8, 2)


def cut(lengths, group=4, kv_heads=8, num_sms=132, reach=None):
    q_lens, kv_lens = np.array(lengths, np.int32).reshape(-1, 2).T
    return schedule(
        q_lens,
        kv_lens,
        small=SMALL,
        large=LARGE,
        group=group,
        kv_heads=kv_heads,
        num_sms=num_sms,
        reach=reach,
    )


lengths = st.lists(
    st.integers(0, 300).flatmap(lambda q: st.tuples(st.just(q), st.integers(q, 5000))), max_size=12
)


@given(lengths=lengths, group=st.integers(1, 16), num_sms=st.sampled_from([1, 20, 132]))
def test_every_query_is_in_one_tile_and_every_key_in_one_share(lengths, group, num_sms):
    computed = [np.zeros(q, int) for q, _ in lengths]
    for launch in cut(lengths, group=group, num_sms=num_sms):
        tokens = launch.tile.m // group
        for seq, token in zip(launch.tile_seqs, launch.tile_tokens, strict=True):
            computed[seq][token : token + tokens] += 1
            tiles = -(-lengths[seq][1] // launch.tile.n)
            assert launch.splits == 1 or launch.splits * launch.share >= tiles
        assert launch.splits <= MAX_SPLITS
    assert all((c == 1).all() for c in computed)


def test_few_long_sequences_are_split_over_the_whole_card():
    (launch,) = cut([(1, 32768)] * 2)
    programs = 2 * 8 * launch.splits
    assert 132 <= programs <= 132 * PROGRAMS_PER_SM


def test_many_sequences_are_not_split():
    (launch,) = cut([(1, 2000)] * 256)
    assert launch.splits == 1


def test_short_sequences_are_not_split_for_nothing():
    (launch,) = cut([(1, 200)])
    assert launch.splits == 1


def test_one_long_sequence_among_many_short_ones_is_split():
    (launch,) = cut([(1, 100_000)] + [(1, 300)] * 127)
    assert launch.splits > 8


def test_decodes_and_chunks_get_tiles_of_their_own():
    small, large = cut([(1, 500), (400, 400), (2, 90), (0, 7)])
    assert small.tile == SMALL
    assert small.tile_seqs.tolist() == [0, 2]
    assert large.tile == LARGE
    assert large.tile_tokens.tolist() == list(range(0, 400, 32))


def test_a_rule_that_sees_little_is_not_split_for_keys_it_never_reads():
    (launch,) = cut([(1, 100_000)], reach=200)
    assert launch.splits == 1
