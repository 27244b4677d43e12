"""The timeline keeps exact integrals whatever its bins."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.timeline import Timeline

steps = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 9), st.integers(0, 9)), max_size=60)


@given(steps, st.sampled_from([2, 4, 8]), st.sampled_from([1, 3, 64]))
def test_bins_add_up_to_the_exact_integral(parts, max_bins, bin_ns):
    line = Timeline(2, max_bins=max_bins, bin_ns=bin_ns)
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


def test_bins_double_when_they_run_out():
    line = Timeline(1, max_bins=4, bin_ns=10)
    line.add(45, (1,))
    assert line.bin_ns == 20
    assert line.means()[0].tolist() == [20, 40, 45]
