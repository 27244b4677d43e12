"""Token buckets on a clock of the test's: never more than a minute's worth at once, an even refill, and debts that are paid."""

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import RequestError
from engine.executor import SamplingParams
from engine.requests import BeamSearch, Generation
from gateway.allowance import ASSUMED_TOKENS, Allowance, Bucket, RateLimitError, cost_of
from gateway.tenants import Tenant


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def generation(prompt: int, max_tokens: int | None, n: int = 1) -> Generation:
    return Generation(
        prompt=np.full(prompt, 3, np.int32),
        sampling=SamplingParams(),
        max_tokens=max_tokens,
        num_sequences=n,
    )


EIGHTHS = st.integers(0, 8 * 90)
"""Of a second, so that floats are exact."""


@given(
    size=st.sampled_from([1, 15, 60, 960]),
    steps=st.lists(st.tuples(EIGHTHS, st.integers(1, 20)), max_size=40),
)
def test_bucket_takes_what_exact_arithmetic_takes(size: int, steps: list[tuple[int, int]]) -> None:
    clock = Clock()
    bucket, level = Bucket(size, clock), Fraction(size)
    taken: list[tuple[float, int]] = []
    for eighths, amount in steps:
        clock.now += eighths / 8
        level = min(level + Fraction(eighths, 8) * size / 60, Fraction(size))
        assert bucket.level == pytest.approx(float(level), abs=1e-6)
        if amount <= size and abs(level - amount) > 1e-6:
            wait = bucket.wait_s(amount)
            assert (wait == 0) == (level >= amount)
            assert wait == pytest.approx(max(0.0, float((amount - level) * 60 / size)), abs=1e-6)
            if wait == 0:
                bucket.charge(amount)
                level -= amount
                taken.append((clock.now, amount))
    for start, _ in taken:  # any minute sees at most what was saved up and what came in
        assert sum(amount for at, amount in taken if start <= at < start + 60) <= 2 * size


def test_waiting_as_long_as_told_is_enough() -> None:
    clock = Clock()
    allowance = Allowance(Tenant(name="web", requests_per_minute=3), clock)
    for _ in range(3):
        allowance.take_request()
    with pytest.raises(RateLimitError, match="3 requests a minute") as raised:
        allowance.take_request()
    assert raised.value.retry_after_ms == 20_000
    clock.now += 20
    allowance.take_request()
    with pytest.raises(RateLimitError):
        allowance.take_request()


def test_clock_that_stands_still_gives_nothing() -> None:
    bucket = Bucket(10, Clock())
    bucket.charge(10)
    assert bucket.level == 0
    assert bucket.level == 0


def test_tokens_are_charged_for_prompt_and_answers_and_settled_at_the_end() -> None:
    clock = Clock()
    allowance = Allowance(Tenant(name="web", tokens_per_minute=1000), clock)
    asked = [generation(100, 200, n=2), generation(50, 50)]
    allowance.take_tokens(asked)
    assert dict(allowance.headers())[b"x-ratelimit-remaining-tokens"] == b"400"
    with pytest.raises(RateLimitError, match="asks for 500") as raised:
        allowance.take_tokens([generation(250, 250)])
    assert raised.value.retry_after_ms == 6_000
    allowance.settle(600, 110)
    assert dict(allowance.headers())[b"x-ratelimit-remaining-tokens"] == b"890"
    allowance.settle(0, 2000)
    said = dict(allowance.headers())
    assert said[b"x-ratelimit-remaining-tokens"] == b"0"
    assert said[b"x-ratelimit-reset-tokens"] == b"2m7s"
    clock.now += 3600
    assert dict(allowance.headers())[b"x-ratelimit-remaining-tokens"] == b"1000"


def test_refused_tokens_cost_nothing_and_returned_ones_never_overflow() -> None:
    clock = Clock()
    allowance = Allowance(Tenant(name="web", tokens_per_minute=1000), clock)
    allowance.take_tokens([generation(900, 50)])
    with pytest.raises(RateLimitError):
        allowance.take_tokens([generation(90, 10)])
    allowance.take_tokens([generation(40, 10)])
    clock.now += 60
    allowance.give_back([generation(900, 100)])
    assert dict(allowance.headers())[b"x-ratelimit-remaining-tokens"] == b"1000"


def test_what_can_never_be_taken_is_refused_by_name() -> None:
    allowance = Allowance(Tenant(name="web", tokens_per_minute=100), Clock())
    with pytest.raises(RequestError, match=r"ask for 150 tokens.* 100 a minute") as raised:
        allowance.take_tokens([generation(50, 100)])
    assert raised.value.param == "max_tokens"


def test_answer_without_a_limit_is_charged_an_assumed_length() -> None:
    assert cost_of(generation(10, None, n=2)) == 10 + 2 * ASSUMED_TOKENS
    beams = msgspec.structs.replace(generation(10, 20, n=2), beam=BeamSearch(width=7))
    assert cost_of(beams) == 10 + 7 * 20


def test_tenant_without_limits_has_no_headers() -> None:
    allowance = Allowance(Tenant(name="web"), Clock())
    for _ in range(1000):
        allowance.take_request()
    allowance.take_tokens([generation(10**6, 10**6)])
    assert not allowance.limited
    assert allowance.headers() == []
