"""The roofline's constants are those that docs/twin.md gives reasons for, and what they say of the measured run has not changed."""

import re

import pytest

from benchmarks.predict_vllm import LATENCIES, find_run, measured, predict, runs_of
from sim.roofline import Efficiency
from tests.conftest import ROOT


def test_every_constant_stands_in_the_documentation_with_its_value():
    text = (ROOT / "docs/twin.md").read_text(encoding="utf-8")
    stated = {}
    for names, values in re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \| ([\d., ]+) \|", text, re.MULTILINE
    ):
        numbers = [float(value.replace(",", "")) for value in re.split(r",\s", values)]
        stated |= dict(zip(re.findall(r"\w+", names), numbers, strict=True))
    assert stated == {name: getattr(Efficiency(), name) for name in Efficiency.__struct_fields__}


def test_the_measured_run_is_predicted_as_documented():
    run = find_run()
    if run is None:
        pytest.skip("the measured run is not here")
    known = runs_of(ROOT / "benchmarks/vllm_runs.toml")[0]
    real, report = measured(run, known), predict(run, known["settings"])
    errors = {name: getattr(report, name).mean / real[f"{name}_mean"] - 1 for name in LATENCIES}
    text = (ROOT / "docs/twin.md").read_text(encoding="utf-8")
    section = text[text.index("## Predicting another engine") :]
    documented = re.findall(r"\| mean \|.*\| ([+−]\d+\.\d) % \|", section)
    assert len(documented) == len(errors)
    for error, stated in zip(errors.values(), documented, strict=True):
        assert 100 * error == pytest.approx(float(stated.replace("−", "-")), abs=1.0)
