"""Other times, other rates, a shared prompt: what changes and what stays."""

import itertools
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import ConfigError
from traces.arrivals import gaps_ns, weibull_shape
from traces.schema import ROOT, TraceRequest
from traces.transforms import (
    opened,
    resample,
    scale_rate,
    scale_time,
    with_arrivals,
    with_system_prompt,
)

SECOND = 10**9


def lone(times: list[int]) -> list[TraceRequest]:
    return [TraceRequest(i, time, 10 + i, 5) for i, time in enumerate(times)]


def session(number: int, at: int) -> list[TraceRequest]:
    return [
        TraceRequest(1, at + turn, 10, 5, array("q", [number]), number, turn, turn - 1, turn)
        for turn in range(3)
    ]


@pytest.mark.parametrize(
    ("spec", "rate", "cv"),
    [
        ("poisson:4", 4, 1),
        ("gamma:2:3", 2, 3),
        ("gamma:10:0.5", 10, 0.5),
        ("weibull:5:2", 5, 2),
        ("weibull:5:0.5", 5, 0.5),
        ("every:0.25", 4, 0),
    ],
)
def test_processes_have_their_rate_and_burstiness(spec, rate, cv):
    gaps = np.array(list(itertools.islice(gaps_ns(spec, 7), 40_000)))
    assert 1e9 / gaps.mean() == pytest.approx(rate, rel=0.06)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.08 * max(cv, 0.1))


@given(st.floats(0.06, 15))
def test_weibull_shape_gives_back_its_cv(cv):
    from math import gamma

    shape = weibull_shape(cv)
    first, second = gamma(1 + 1 / shape), gamma(1 + 2 / shape)
    assert (second / first**2 - 1) ** 0.5 == pytest.approx(cv, rel=1e-6, abs=1e-6)


def test_a_seed_fixes_the_gaps():
    one, same, other = (
        list(itertools.islice(gaps_ns("poisson:4", seed), 5000)) for seed in (1, 1, 2)
    )
    assert one == same != other


@pytest.mark.parametrize(
    "spec",
    ["", "poisson", "poisson:0", "poisson:x", "gamma:1", "gamma:1:-1", "weibull:1:99", "often:3"],
)
def test_a_wrong_process_is_refused(spec):
    with pytest.raises(ConfigError, match=r"arrivals|Weibull"):
        next(gaps_ns(spec, 0))


def test_arrivals_move_sessions_as_one():
    rows = [*session(0, 100), *session(1, 300), *lone([400])]
    moved = list(with_arrivals(rows, gaps_ns("every:1", 0)))
    starts = [row.arrival_ns for row in moved]
    assert starts == [0, 1, 2, SECOND, SECOND + 1, SECOND + 2, 2 * SECOND]
    assert [row.think_ns for row in moved] == [row.think_ns for row in rows]


def test_time_scale_keeps_order_and_think_times():
    rows = [*lone([0, 100]), *session(0, 200)]
    scaled = list(scale_time(rows, 2.5))
    assert [row.arrival_ns for row in scaled] == [0, 250, 500, 501, 502]
    assert [row.think_ns for row in scaled] == [0, 0, 0, 1, 2]


def test_thinning_keeps_requests_as_they_are():
    rows = lone(list(range(0, 4000 * SECOND, SECOND)))
    kept = list(scale_rate(rows, 0.25, seed=3))
    assert set(map(id, kept)) <= set(map(id, rows))
    assert len(kept) == pytest.approx(1000, abs=120)
    assert kept == sorted(kept, key=lambda row: row.arrival_ns)


def test_repetitions_come_soon_after_and_share_no_block_or_session():
    rows = [row for i in range(50) for row in session(i, i * SECOND)]
    scaled = list(scale_rate(rows, 3, seed=3, spread_s=4.0))
    assert len(scaled) == 3 * len(rows)
    starts = [row.arrival_ns for row in scaled if row.after == ROOT]
    assert starts == sorted(starts)
    by_session: dict[int, list[TraceRequest]] = {}
    for row in scaled:
        by_session.setdefault(row.session, []).append(row)
    assert len(by_session) == 150
    assert all([row.turn for row in rows] == [0, 1, 2] for rows in by_session.values())
    blocks = {number: rows[0].hash_ids[0] for number, rows in by_session.items()}
    assert len(set(blocks.values())) == 150
    for number, rows_of in by_session.items():
        original = (number // 3) * SECOND
        assert original <= rows_of[0].arrival_ns <= original + 4 * SECOND


@given(st.floats(0.1, 4), st.integers(0, 5))
def test_rate_scale_gives_about_as_many(factor, seed):
    rows = lone([i * SECOND for i in range(400)])
    scaled = list(scale_rate(rows, factor, seed=seed))
    assert len(scaled) == pytest.approx(400 * factor, abs=70)
    assert [row.arrival_ns for row in scaled] == sorted(row.arrival_ns for row in scaled)


@pytest.mark.parametrize("factor", [0, -1, 1e9])
def test_scales_out_of_range_are_refused(factor):
    with pytest.raises(ConfigError):
        list(scale_time(lone([0]), factor))
    with pytest.raises(ConfigError):
        list(scale_rate(lone([0]), factor, seed=0))


def test_a_system_prompt_is_shared_by_its_full_blocks_only():
    rows = list(with_system_prompt(lone([0, 1]), 40, 16))
    assert [row.num_prompt for row in rows] == [50, 51]
    assert [tuple(row.hash_ids) for row in rows] == [(0, 1), (0, 1)]


def test_a_system_prompt_before_known_blocks_is_refused():
    with pytest.raises(ConfigError, match="block ids are known"):
        list(with_system_prompt(session(0, 0), 40, 16))


def test_a_redraw_takes_each_request_as_often_as_a_poisson_draw_of_mean_one():
    rows = lone([SECOND * n // 10 for n in range(20_000)])
    drawn = list(resample(rows, seed=3))
    times = np.bincount([row.line for row in drawn], minlength=len(rows))
    assert times.mean() == pytest.approx(1, abs=0.03)
    assert times.var() == pytest.approx(1, abs=0.05)
    assert (times == 0).mean() == pytest.approx(np.exp(-1), abs=0.02)
    arrivals = [row.arrival_ns for row in drawn]
    assert arrivals == sorted(arrivals)
    for row in drawn:
        assert 0 <= row.arrival_ns - rows[row.line].arrival_ns < 10 * SECOND
    assert drawn == list(resample(rows, seed=3))
    assert drawn != list(resample(rows, seed=4))


def test_copies_of_a_redraw_share_nothing():
    rows = [row for n in range(300) for row in session(n, n * SECOND)]
    drawn = list(resample(rows, seed=0))
    assert len(drawn) > len(rows) // 2
    sessions = {}
    for row in drawn:
        sessions.setdefault(row.session, []).append(row)
    for same in sessions.values():
        assert [row.turn for row in same] == [0, 1, 2], "a session comes whole"
    ids = [same[0].hash_ids[0] for same in sessions.values()]
    assert len(set(ids)) == len(ids)


def test_ids_that_are_hashes_of_64_bits_can_be_repeated():
    ends = [-(2**63), -1, 0, 1, 2**63 - 1]
    rows = [TraceRequest(1, i, 10, 5, array("q", [end])) for i, end in enumerate(ends)]
    for copies in (2, 3, 7):
        scaled = list(scale_rate(rows, copies, seed=0))
        assert len(scaled) == copies * len(rows)
        assert {row.line for row in scaled} == {1}
    assert list(resample(rows, seed=1))


def test_arrivals_beyond_what_time_holds_are_refused():
    rows = lone([0, 2**61])
    with pytest.raises(ConfigError, match="146 years"):
        list(scale_time(rows, 3.0))
    with pytest.raises(ConfigError, match="146 years"):
        list(with_arrivals(rows, iter([2**62 + 1])))


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.lists(st.integers(0, 40), min_size=1, max_size=6)),
        max_size=8,
    )
)
def test_opened_sessions_come_in_order_and_whole(parts):
    rows: list[TraceRequest] = []
    start = 0
    for number, (gap, offsets) in enumerate(parts):
        start += gap
        for turn, offset in enumerate([0, *offsets]):
            rows.append(
                TraceRequest(len(rows), start + offset, 1, 1, array("q"), number, turn, turn - 1, 5)
            )
    free = list(opened(rows))
    assert [row.arrival_ns for row in free] == sorted(row.arrival_ns for row in rows)
    assert sorted(row.line for row in free) == list(range(len(rows)))
    assert all((row.session, row.after, row.think_ns) == (ROOT, ROOT, 0) for row in free)


def test_a_long_session_does_not_push_out_the_ones_that_begin_after_it():
    long = [
        TraceRequest(1, turn * SECOND, 1, 1, array("q"), 0, turn, turn - 1)
        for turn in range(17_000)
    ]
    assert len(list(opened([*long, *session(1, 5 * SECOND)]))) == 17_003
