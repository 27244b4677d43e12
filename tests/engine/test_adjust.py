"""Rules on logits against loops that read like their definitions; log-probabilities against torch's."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.adjust import FORBIDDEN, adjust, spoken
from engine.executor import SamplingParams

V = 12
tokens_of = st.lists(st.integers(0, V - 1), max_size=20)


def slow(
    logits: np.ndarray, params: SamplingParams, tokens: list[int], num_prompt: int
) -> list[float]:
    out = [float(x) for x in logits]
    generated = tokens[num_prompt:]
    for token in range(V):
        if token in tokens:
            r = params.repetition_penalty
            out[token] = out[token] / r if out[token] > 0 else out[token] * r
        if token in generated:
            out[token] -= params.presence_penalty
        out[token] -= params.frequency_penalty * generated.count(token)
        out[token] += dict(params.logit_bias).get(token, 0.0)
        if token in params.stop_ids and len(generated) < params.min_tokens:
            out[token] = float(FORBIDDEN)
    return out


@given(
    logits=st.lists(st.floats(-9, 9, width=32), min_size=V, max_size=V),
    prompt=tokens_of,
    generated=tokens_of,
    repetition=st.sampled_from([1.0, 1.3, 0.7]),
    presence=st.sampled_from([0.0, 0.5, -2.0]),
    frequency=st.sampled_from([0.0, 0.25, -1.0]),
    bias=st.dictionaries(st.integers(0, V - 1), st.floats(-100, 100), max_size=3),
    min_tokens=st.integers(0, 8),
    stop_ids=st.sets(st.integers(0, V - 1), max_size=2),
)
def test_rules_are_what_they_say(
    logits: list[float],
    prompt: list[int],
    generated: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
    min_tokens: int,
    stop_ids: set[int],
) -> None:
    params = SamplingParams(
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=tuple(bias.items()),
        min_tokens=min_tokens,
        stop_ids=tuple(stop_ids),
    )
    values = np.array(logits, np.float32)
    expected = slow(values, params, prompt + generated, len(prompt))
    adjust(values, params, np.array(prompt + generated, np.int32), len(prompt))
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-4)


def test_parameters_that_change_nothing_say_so() -> None:
    assert not SamplingParams(temperature=0.3, top_p=0.1, min_p=0.2, logprobs=3).adjusts
    assert SamplingParams(min_tokens=1).adjusts
    assert SamplingParams(logit_bias=((1, 0.5),)).adjusts


@pytest.mark.parametrize("num_top", [0, 1, 5])
def test_log_probabilities_are_those_of_the_softmax_and_ranked(num_top: int) -> None:
    logits = torch.randn(3_000, generator=torch.Generator().manual_seed(1)) * 5
    expected = torch.log_softmax(logits.double(), -1)
    said = spoken(logits.numpy(), num_top).of(17)
    assert said.logprob == pytest.approx(float(expected[17]), abs=1e-5)
    top = torch.topk(expected, num_top)
    assert list(said.top_ids) == top.indices.tolist()
    assert said.top_logprobs == pytest.approx(top.values.tolist(), abs=1e-5)


def test_reported_log_probabilities_are_those_before_the_rules() -> None:
    logits = np.zeros(V, np.float32)
    said = spoken(logits, 1)
    adjust(logits, SamplingParams(logit_bias=((3, 50.0),)), np.zeros(0, np.int32), 0)
    assert said.of(3).logprob == pytest.approx(-np.log(V))
