"""Routers: who gets a request, by turn, by load, by prefix."""

from array import array

import sim.router
from sim.router import FAR_AHEAD, LeastLoaded, PrefixAware, RoundRobin
from traces.schema import TraceRequest


def row(*ids: int) -> TraceRequest:
    return TraceRequest(1, 0, max(1, len(ids)), 1, array("q", ids))


def test_round_robin_takes_turns():
    router = RoundRobin()
    assert [router.choose(row(), [9, 0, 0]) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_least_loaded_prefers_the_first_of_equals():
    assert LeastLoaded().choose(row(), [3, 1, 1]) == 1


def test_a_prompt_follows_its_prefix():
    router = PrefixAware()
    assert router.choose(row(1, 2), [1, 0]) == 1
    assert router.choose(row(1, 2, 3), [0, 1]) == 1
    assert router.choose(row(1, 9, 9, 9), [0, 1]) == 0, "a quarter of the prompt is not worth it"


def test_a_prefix_does_not_outweigh_a_long_queue():
    router = PrefixAware()
    router.choose(row(1, 2), [1, 0])
    assert router.choose(row(1, 2), [0, FAR_AHEAD - 1]) == 1
    assert router.choose(row(1, 2), [0, FAR_AHEAD]) == 0


def test_the_prefix_sent_longest_ago_is_forgotten(monkeypatch):
    monkeypatch.setattr(sim.router, "KNOWN_PREFIXES", 2)
    router = PrefixAware()
    router.choose(row(1), [1, 0])
    router.choose(row(2), [1, 0])
    router.choose(row(3), [1, 0])
    assert router.choose(row(1), [0, 1]) == 0
    assert router.choose(row(3), [0, 1]) == 1
