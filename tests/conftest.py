"""Fixtures shared by all tests: where the public traces lie, and the default model."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Triton decides at import whether kernels are interpreted. `make gpu` sets 0 and runs them natively.
os.environ.setdefault("TRITON_INTERPRET", "1")
# Of tests side by side each has a core. Threads that wait for each other, as torch's do, are slow where others want it too.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"

_NO_CLOCK = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("default", **_NO_CLOCK, max_examples=50)
settings.register_profile("nightly", **_NO_CLOCK, max_examples=2000, derandomize=False)
settings.load_profile(os.environ.get("KILBURN_HYPOTHESIS", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Golden files are compared, unless a person asks to record them anew."""
    parser.addoption(
        "--rewrite-golden", action="store_true", help="record the files of tests/golden anew"
    )


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of public traces; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("KILBURN_TRACES", ROOT.parent / "shared" / "traces"))
    if not folder.is_dir():
        pytest.skip("the public traces are not on this machine (set KILBURN_TRACES)")
    return folder
