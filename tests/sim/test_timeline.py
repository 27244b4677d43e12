"""The timeline keeps exact integrals whatever its bins and however the intervals come."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.timeline import Timeline

steps = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 9), st.integers(0, 9)), max_size=60)


@given(steps, st.sampled_from([2, 4, 8]), st.sampled_from([1, 3, 64]), st.sampled_from([1, 3, 99]))
def test_bins_add_up_to_the_exact_integral(parts, max_bins, bin_ns, buffered):
    line = Timeline(2, max_bins=max_bins, bin_ns=bin_ns, buffered=buffered)
    dense: list[tuple[int, int]] = []
    for length, a, b in parts:
        line.add(line.end_ns + length, (a, b))
        dense += [(a, b)] * length
    totals = np.array(dense).reshape(-1, 2).sum(axis=0)
    assert line.totals() == totals.tolist()
    ends, means = line.means()
    assert len(ends) <= max_bins
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    for start, end, mean in zip(starts, ends, means.T, strict=True):
        np.testing.assert_allclose(mean, np.array(dense[start:end]).mean(axis=0))
    assert (ends[-1] if len(ends) else 0) == len(dense)


@given(steps, st.sampled_from([1, 7, 99]))
def test_many_intervals_at_once_are_the_same_as_one_by_one(parts, buffered):
    one = Timeline(2, max_bins=4, bin_ns=3)
    many = Timeline(2, max_bins=4, bin_ns=3, buffered=buffered)
    for length, a, _ in parts:
        one.add(one.end_ns + length, (a, 5))
    lengths, values, _ = np.array(parts, np.int64).reshape(-1, 3).T
    many.add_many(np.cumsum(lengths), (values, 5))
    assert many.totals() == one.totals()
    assert many.end_ns == one.end_ns
    for mine, other in zip(many.means(), one.means(), strict=True):
        assert np.array_equal(mine, other)


def test_sums_beyond_64_bits_stay_exact():
    line = Timeline(1, max_bins=4, bin_ns=10)
    line.add(7, (10**9,))
    line.add(10**17, (10**9 + 1,))
    assert line.totals() == [7 * 10**9 + (10**17 - 7) * (10**9 + 1)]


def test_bins_double_when_they_run_out():
    line = Timeline(1, max_bins=4, bin_ns=10)
    line.add(45, (1,))
    assert line.means()[0].tolist() == [20, 40, 45]
    assert line.bin_ns == 20
