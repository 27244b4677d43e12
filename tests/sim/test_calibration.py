"""The points that the roofline's constants were fitted to, and what follows from them."""

import re

import msgspec
import numpy as np
import pytest

from benchmarks import _published
from benchmarks._published import Aside, Case, Point, load_cases, predict, prefills
from benchmarks.calibrate import NAMES, PRIORS, errors, fit, summary
from sim.cost import decode_work
from sim.roofline import Efficiency, Roofline
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return load_cases()


def test_no_point_is_of_the_run_that_the_model_is_tried_on(cases, tmp_path):
    assert all((c.run.card, c.run.model) != ("RTX 4090", "Llama-3.1-8B") for c in cases)
    text = _published.POINTS.read_text(encoding="utf-8")
    planted = tmp_path / "points.toml"
    planted.write_text(text.replace('model = "Mistral-7B"', 'model = "Llama-3.1-8B"'))
    with pytest.raises(ValueError, match="tried on"):
        load_cases(planted)


def test_every_point_has_a_source_an_engine_and_one_figure(cases):
    assert all(c.run.source.startswith("https://") and c.run.engine for c in cases)
    assert all(c.point.measured > 0 for c in cases)
    assert len({c.run.card for c in cases}) >= 20
    with pytest.raises(ValueError, match="one figure"):
        _ = Point(kind="decode", ms=1.0, us=2.0).measured


def test_the_frozen_constants_are_the_fit_rounded(cases):
    rates, aside = fit(cases)
    for name in NAMES:
        fitted = getattr(aside if hasattr(aside, name) else rates, name)
        frozen = getattr(Aside() if hasattr(aside, name) else Efficiency(), name)
        assert frozen == pytest.approx(fitted, rel=0.05), name
        _, _, least, most = PRIORS[name]
        assert least * 1.01 < fitted < most / 1.01, f"{name} is at a bound"


def test_the_points_are_as_far_off_as_documented(cases):
    text = (ROOT / "docs/twin.md").read_text(encoding="utf-8")
    told = re.search(
        r"holds (\d+) points of (\d+) cards.*within ([\d.]+) %, (\d+) of \d+ within 10 %",
        text,
        re.DOTALL,
    )
    assert told is not None
    found = errors(cases, Efficiency(), Aside())
    assert (len(cases), len({c.run.card for c in cases})) == (int(told[1]), int(told[2]))
    assert summary(found)["median_size_percent"] == pytest.approx(float(told[3]), abs=0.1)
    assert int(np.sum(np.abs(np.expm1(found)) <= 0.10)) == pytest.approx(int(told[4]), abs=1)


@pytest.mark.parametrize(
    ("batch", "tokens", "budget", "steps"),
    [(1, 100, 2048, 1), (5, 1000, 2048, 3), (2, 5000, 2048, 6)],
)
def test_prompts_are_computed_once_in_steps_of_the_budget(batch, tokens, budget, steps):
    works = list(prefills(batch, tokens, budget))
    assert len(works) == steps
    assert sum(w.num_tokens for w in works) == batch * tokens
    assert sum(w.num_samples for w in works) == batch
    assert sum(w.attended for w in works) == batch * tokens * (tokens + 1) // 2
    assert max(w.num_tokens for w in works) <= budget


def test_a_throughput_is_the_answers_over_the_time_of_all_waves(cases):
    one = next(c for c in cases if c.point.kind == "throughput")
    point = Point(kind="throughput", batch=4, input=10, output=3, requests=6, tokens_per_s=1.0)
    run = msgspec.structs.replace(one.run, points=(point,))
    case = Case(run, point, one.hardware, one.model)
    cost = Roofline(one.hardware, one.model, run.dtype, run.dtype, overlap=run.overlap)
    total = 0
    for batch in (4, 2):
        total += sum(map(cost.step_ns, prefills(batch, 10, run.budget)))
        total += cost.step_ns(decode_work(batch, 11 * batch)) + cost.step_ns(
            decode_work(batch, 12 * batch)
        )
    assert predict(case, Efficiency(), Aside()) == pytest.approx(1e9 * 18 / total)


def test_a_rate_that_is_predicted_too_high_counts_as_too_fast(cases):
    one = next(c for c in cases if c.point.kind == "throughput")
    high = msgspec.structs.replace(one.point, tokens_per_s=1e-3)
    case = Case(one.run, high, one.hardware, one.model)
    assert errors([case], Efficiency(), Aside())[0] < 0
