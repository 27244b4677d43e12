"""Generators: distributions as asked, conversations that grow, client mixes at their rate."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import ConfigError
from traces.generate import Conversation, conversations, draws, independent, resampled
from traces.schema import ROOT, TraceRequest
from traces.servegen import Client, Lengths, Window, expected_requests, mix, read_clients
from traces.stats import arrival_figures
from traces.synth import Recipe, synthesise


def sample(spec: str, count: int = 40_000) -> np.ndarray:
    rng = np.random.default_rng(3)
    return np.array(list(itertools.islice(draws("--prompt", spec, rng), count)))


@pytest.mark.parametrize(
    ("spec", "mean", "cv"),
    [
        ("fixed:7", 7, 0),
        ("uniform:10:30", 20, 0.303),
        ("lognormal:1000:1.5", 1000, 1.5),
        ("geometric:4", 4, 0.866),
    ],
)
def test_lengths_have_their_mean_and_spread(spec, mean, cv):
    found = sample(spec)
    assert found.min() >= 1
    assert found.mean() == pytest.approx(mean, rel=0.04)
    assert found.std() / found.mean() == pytest.approx(cv, abs=0.08)


@pytest.mark.parametrize(
    "spec",
    ["", "fixed", "fixed:0", "fixed:x", "uniform:5:1", "normal:3:1", "lognormal:3", "fixed:1e12"],
)
def test_a_wrong_length_is_refused_by_flag(spec):
    with pytest.raises(ConfigError, match="--prompt"):
        sample(spec, 1)


def test_resampling_keeps_pairs_together():
    source = [TraceRequest(i, 0, 10 * i, i) for i in range(1, 6)]
    drawn = list(itertools.islice(resampled(source, seed=1), 200))
    assert all(row.num_prompt == 10 * row.num_output for row in drawn)
    assert {row.num_output for row in drawn} == {1, 2, 3, 4, 5}


@given(st.integers(0, 1000), st.integers(0, 100), st.integers(200, 2000))
def test_conversations_grow_by_what_was_said(seed, system_tokens, max_context):
    shape = Conversation(
        turns="geometric:3",
        message="lognormal:60:1",
        output="lognormal:60:1",
        system_tokens=system_tokens,
        max_context=max_context,
        block_tokens=16,
    )
    rows = list(itertools.islice(conversations(shape, seed=seed), 30))
    seen: dict[int, tuple[int, ...]] = {}
    before: TraceRequest | None = None
    for row in rows:
        assert row.num_prompt + row.num_output <= max_context
        assert len(row.hash_ids) == row.num_prompt // 16
        if row.turn:
            assert before is not None
            assert (row.session, row.turn, row.after) == (
                before.session,
                before.turn + 1,
                before.turn,
            )
            assert row.num_prompt > before.num_prompt + before.num_output
            assert tuple(row.hash_ids[: len(before.hash_ids)]) == tuple(before.hash_ids)
        else:
            assert row.after == ROOT
        system = tuple(range(system_tokens // 16))
        assert tuple(row.hash_ids[: len(system)]) == system
        for place, block in enumerate(row.hash_ids):
            prefix = tuple(row.hash_ids[: place + 1])
            assert seen.setdefault(block, prefix) == prefix, "an id stands for one prefix"
        before = row


def test_independent_lengths_do_not_depend_on_each_other():
    rows = list(itertools.islice(independent("uniform:1:1000", "uniform:1:1000", seed=1), 20_000))
    pairs = np.array([(row.num_prompt, row.num_output) for row in rows])
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.03


def client(family: str, cv: float, shape: float, rates: list[float]) -> Client:
    windows = [Window(600.0 * i, rate, cv, family, shape, 123.0) for i, rate in enumerate(rates)]
    return Client(0, windows, {"0": Lengths([(10, 0.5), (30, 0.5)], [(5, 1.0)])})


@pytest.mark.parametrize(
    ("family", "cv", "shape"), [("Gamma", 2.0, 0.25), ("Weibull", 0.5, 2.1013)]
)
def test_a_clients_rate_and_burstiness_come_out(family, cv, shape):
    one = client(family, cv, shape, [20.0, 20.0, 0.0, 40.0])
    rows = list(mix([one], start_s=0, duration_s=2400, seed=5))
    times = np.array([row.arrival_ns for row in rows]) / 1e9
    assert expected_requests([one], 0, 2400) == 48_000
    assert len(times) == pytest.approx(48_000, rel=0.04)
    assert not ((times > 1200) & (times < 1800)).any(), "a silent window stays silent"
    first = arrival_figures((times[times < 1200] * 1e9).astype(np.int64))
    assert first.rate_per_s == pytest.approx(20, rel=0.06)
    assert first.cv == pytest.approx(cv, rel=0.06)
    assert {row.num_prompt for row in rows} == {10, 30}


def test_a_mix_can_be_scaled_to_a_rate():
    one = client("Gamma", 1.0, 1.0, [20.0, 20.0])
    rows = list(mix([one, one], start_s=300, duration_s=600, rate=5.0, seed=5))
    assert len(rows) == pytest.approx(3000, rel=0.08)
    assert [row.arrival_ns for row in rows] == sorted(row.arrival_ns for row in rows)


def test_a_silent_stretch_is_refused():
    with pytest.raises(ConfigError, match="no client is active"):
        next(mix([client("Gamma", 1.0, 1.0, [0.0, 1.0])], start_s=0, duration_s=600, seed=0))


def test_the_public_mix_gives_its_recorded_rate(shared_traces):
    clients = read_clients(shared_traces / "servegen_deepseek_r1_clients.jsonl.gz")
    rows = list(mix(clients, start_s=36_000, duration_s=3600, seed=1))
    assert len(rows) == pytest.approx(expected_requests(clients, 36_000, 3600), rel=0.15)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (Recipe(), "give --num"),
        (Recipe(num=1), "give --arrivals"),
        (Recipe(num=0, arrivals="at-once"), "--num is 0"),
        (Recipe(num=1, arrivals="at-once", sessions=True, lengths="x"), "only one of"),
        (Recipe(clients="x", arrivals="at-once"), "do not go with"),
        (Recipe(num=1, arrivals="at-once", seed=-1), "--seed"),
    ],
)
def test_a_recipe_that_does_not_add_up_is_refused(recipe, words):
    with pytest.raises(ConfigError, match=words):
        synthesise(recipe)


def test_arrivals_and_lengths_have_seeds_of_their_own():
    def made(**changes):
        return list(synthesise(Recipe(num=50, **{"arrivals": "poisson:3", **changes}))[1])

    base, other_times, other_seed = made(), made(arrivals="gamma:3:2"), made(seed=1)
    assert base == made()
    assert [r.num_prompt for r in base] == [r.num_prompt for r in other_times]
    assert [r.arrival_ns for r in base] != [r.arrival_ns for r in other_times]
    assert [r.num_prompt for r in base] != [r.num_prompt for r in other_seed]
