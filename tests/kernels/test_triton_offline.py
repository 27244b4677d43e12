"""The shipped builds compile for cards that are not here, and their machine code is as it should be.

Compilation happens in processes of its own: here kernels are interpreted.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import triton

from kernels.builds import shipped
from kernels.offline import ARCHITECTURES
from tests.conftest import ROOT

SUBSET = (
    "decode-causal-bf16-bf16-d128-b16-g4",
    "prefill-causal-bf16-bf16-d128-b16-g4",
    "decode-causal-bf16-fp8e4nv-d80-b16-g4",
    "decode-sinks-bf16-bf16-d128-b16-g4",
    "write-bf16-e4m3-d128",
    "copy",
    "sample-draw",
)
"""One build of each kind, compiled in each run; the whole matrix is compiled by `make test-all`."""
JUDGED = ROOT / "tests" / "golden" / "machine_code.json"
"""Which builds were compiled and judged without fault, and by which Triton."""


def python(*args: str) -> list[Any]:
    """The JSON lines that a module prints, run where Triton compiles."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr[-2000:]
    return lines


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_matrix_has_at_most_sixty_builds_of_different_names(arch):
    names = [b.name for b in shipped(arch)]
    assert len(names) == len(set(names)) <= 60
    assert set(SUBSET) <= set(names)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_shipped_build_is_one_that_was_judged_without_fault(arch):
    judged = json.loads(JUDGED.read_text(encoding="utf-8"))
    if judged["triton"] != triton.__version__:
        pytest.skip(f"builds were judged with Triton {judged['triton']}")
    (shipped_now,) = python("-m", "kernels.offline", "--arch", str(arch), "--fingerprints")
    changed = [
        name for name, print_ in shipped_now.items() if judged[str(arch)].get(name) != print_
    ]
    again = f"python -m kernels.offline --arch {arch} --record {JUDGED.relative_to(ROOT)}"
    assert not changed, f"kernels have changed; judge their machine code again: {again}"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_one_build_of_each_kind_has_clean_machine_code(arch):
    reports = python("-m", "kernels.offline", "--arch", str(arch), "--only", ",".join(SUBSET))
    assert {r["name"] for r in reports} >= set(SUBSET)
    assert [(r["name"], r["faults"]) for r in reports if r["faults"]] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_shipped_build_has_clean_machine_code(arch):
    reports = python("-m", "kernels.offline", "--arch", str(arch))
    assert len(reports) == len(shipped(arch))
    assert [(r["name"], r["faults"]) for r in reports if r["faults"]] == []


def test_planted_faults_are_found():
    (found,) = python("-m", "tests.kernels.faulty_builds")
    assert "local memory" in found["huge tile"][0]
    assert any("loads" in fault for fault in found["unaligned blocks"])
