"""Beam search by arrays finds what the plain one finds, and stops early only where nothing better can come."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.beams import Hypotheses, next_beam
from tests.reference.beam_search import plain_beam_search


def language(seed, vocabulary, coarse):
    """Log probabilities of the next token, a function of the tokens before; `coarse` ones tie often."""

    def log_probs(tokens):
        key = [seed, *tokens]
        logits = np.random.default_rng(key).normal(size=vocabulary)
        if coarse:
            return np.round(logits).astype(np.float32)
        return (logits - np.log(np.exp(logits).sum())).astype(np.float32)

    return log_probs


def fast_beam_search(log_probs, width, max_tokens, ends, penalty):
    hypotheses = Hypotheses(width, max_tokens, penalty)
    scores, histories = np.zeros(width), [[]] * width
    for step in range(max_tokens):
        rows = np.stack([log_probs(history) for history in histories])
        beam = next_beam(rows, scores, ends, first=step == 0)
        settled = hypotheses.is_settled(beam)
        hypotheses.advance(beam)
        if settled:
            return hypotheses.best(width), step + 1
        histories = [
            [*histories[p], t]
            for p, t in zip(beam.parents.tolist(), beam.tokens.tolist(), strict=True)
        ]
        scores = beam.scores
    return hypotheses.best(width), max_tokens


@given(
    seed=st.integers(0, 1000),
    width=st.integers(1, 4),
    max_tokens=st.integers(1, 6),
    ends=st.frozensets(st.integers(0, 9), max_size=2),
    penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    coarse=st.booleans(),
)
def test_the_beam_finds_what_plain_beam_search_finds(
    seed, width, max_tokens, ends, penalty, coarse
):
    log_probs = language(seed, 10, coarse)
    if coarse:  # without normal log probabilities a longer answer may gain; the bound does not hold
        log_probs_of, log_probs = log_probs, lambda tokens: np.minimum(log_probs_of(tokens), 0)
    expected = plain_beam_search(log_probs, width, max_tokens, ends, penalty)
    found, _ = fast_beam_search(log_probs, width, max_tokens, ends, penalty)
    assert [h.score for h in found] == pytest.approx([score for _, score in expected])
    if not coarse:
        assert [list(h.tokens) for h in found] == [tokens for tokens, _ in expected]


def test_a_settled_beam_stops_before_its_limit():
    """The end token is by far the likeliest, so that nothing longer can win."""
    row = np.full(10, -20.0, np.float32)
    row[3] = -0.01
    _, steps = fast_beam_search(lambda tokens: row, 2, 50, frozenset({3}), 1.0)
    assert steps < 50


def test_a_first_step_takes_all_hypotheses_from_the_prompt():
    rows = np.log(np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], np.float32))
    beam = next_beam(rows, np.zeros(2), frozenset(), first=True)
    assert beam.parents.tolist() == [0, 0]
    assert beam.tokens.tolist() == [0, 1]
