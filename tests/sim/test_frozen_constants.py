"""The roofline's constants are version 2 as docs/twin.md gives reasons for, and what was said of the measured run has not changed."""

import re

import pytest

from benchmarks.predict_vllm import LATENCIES, find_run, measured, predict, runs_of
from sim.roofline import Efficiency
from tests.conftest import ROOT

VERSION_2 = {
    "linear_compute": 0.66,
    "ramp_tokens": 60,
    "attention_compute": 0.47,
    "power_exponent": 0.22,
    "unhidden": 0.18,
    "attention_tile": 64,
    "memory": 0.94,
    "kv_memory": 0.88,
    "logit_bytes": 16,
    "link": 0.75,
    "collective_us": 10,
    "pcie_collective_us": 28,
    "kernel_cycles": 12_000,
    "eager_launch_us": 5,
    "launches_per_layer": 8,
    "quantise_launches": 1,
    "expert_launches": 5,
    "step_us": 190,
    "host_step_us": 640,
    "host_sequence_us": 10,
    "host_block_us": 3,
}
"""Frozen on 30 November 2026, before the second comparison with the measured run. Never adjusted after it."""
ADDED = {"pcie_link": 0.55}
"""After the third comparison, from published all-reduce tests."""
VERSION_1 = {
    "memory": "0.85",
    "kv_memory": "0.75",
    "linear_compute": "0.70",
    "ramp_tokens": "64",
    "attention_compute": "0.50",
    "attention_tile": "64",
    "logit_bytes": "16",
    "launch_us": "1.5",
    "launches_per_layer": "8",
    "eager_launch_us": "5.0",
    "step_us": "300",
    "host_step_us": "1,000",
    "host_sequence_us": "8",
    "host_block_us": "3.0",
    "link": "0.75",
    "collective_us": "10",
    "pcie_collective_us": "30",
}
"""Frozen earlier that day, before the first."""


def documentation() -> str:
    return (ROOT / "docs/twin.md").read_text(encoding="utf-8")


def test_the_constants_are_those_that_were_frozen_before_the_second_comparison():
    frozen = {name: getattr(Efficiency(), name) for name in Efficiency.__struct_fields__}
    assert frozen == VERSION_2 | ADDED


def test_every_constant_stands_in_the_documentation_with_its_value():
    stated = {}
    for names, values in re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \| ([\d., ]+) \|", documentation(), re.MULTILINE
    ):
        numbers = [float(value.replace(",", "")) for value in re.split(r",\s", values)]
        stated |= dict(zip(re.findall(r"\w+", names), numbers, strict=True))
    assert stated == VERSION_2 | ADDED


def test_the_documentation_still_tells_what_version_1_was():
    text = documentation()
    told = text[text.index("*Version 1*") : text.index("### Fits and tables")]
    assert dict(re.findall(r"`(\w+)` ([\d.,]*\d)", told)) == VERSION_1


@pytest.mark.parametrize("number", range(3))
def test_the_measured_runs_are_predicted_as_documented(number: int):
    """By the constants as they are; the first comparison's figures are version 1's, which is no more."""
    run = find_run()
    if run is None:
        pytest.skip("the measured run is not here")
    text = documentation()
    second = text.index("### The second comparison: version 2")
    third = text.index("### The third comparison: other cards")
    if number == 0:
        documented = re.findall(r"\| mean \|.*\| ([+−]\d+\.\d) % \|", text[second:third])
    else:
        rows = re.findall(r"ms \| [\d.,]+ \| [\d.,]+ \| ([+−]\d+\.\d) % \|", text[third:])
        documented = rows[3 * (number - 1) : 3 * number]
    known = runs_of(ROOT / "benchmarks/vllm_runs.toml")[number]
    real, report = measured(run, known), predict(run, known)
    errors = {name: getattr(report, name).mean / real[f"{name}_mean"] - 1 for name in LATENCIES}
    assert len(documented) == len(errors)
    for error, stated in zip(errors.values(), documented, strict=True):
        assert 100 * error == pytest.approx(float(stated.replace("−", "-")), abs=1.0)
