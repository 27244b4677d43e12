"""The core's tests find faults: each of these, planted alone in a copy of the core, makes the world or the test that is named fail.

A fault is a passage of the source and what stands there instead. The seeds and steps of the tests bound the search.
"""

import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT

MEMORY = "memory_world.MemoryWorld"
SCHEDULER = "scheduler_world.SchedulerWorld"
LEAPS = "test_leaps.py"
WALK = """
from tests.engine.core.{module} import {world}
from tests.engine.core.worlds import walk

for seed in range(12):
    walk({world}, seed, 4_000)
"""
"""The machine of a world, without the search for the shortest example."""

FAULTS = {
    "a release forgets to count down": (
        "blocks.py",
        "refs = self.refs[blocks] - ONE",
        "refs = self.refs[blocks] - 0",
        MEMORY,
    ),
    "blocks can be found before the step that computes them has committed": (
        "book.py",
        "computed[plan.rows] = plan.starts\n",
        "computed[plan.rows] = plan.starts + plan.counts\n",
        SCHEDULER,
    ),
    "a parent is evicted before its children": (
        "blocks.py",
        "gone = blocks[::-1] if not np.count_nonzero(refs) else blocks[refs == 0][::-1]",
        "gone = blocks if not np.count_nonzero(refs) else blocks[refs == 0]",
        MEMORY,
    ),
    "a shared block is written without a copy": (
        "holdings.py",
        "self.pool.refs[block] - self.pool.moves[block] > 1",
        "self.pool.refs[block] - self.pool.moves[block] > 99",
        SCHEDULER,
    ),
    "content is shared across salts": (
        "prefix.py",
        'return f"{keys.shape[1]}:{salt}"',
        'return f"{keys.shape[1]}"',
        MEMORY,
    ),
    "a whole prompt may be found, and nothing is left to compute": (
        "memory.py",
        "hits = self._publication.find(first, num_tokens - 1)",
        "hits = self._publication.find(first, num_tokens)",
        SCHEDULER,
    ),
    "admission ignores the watermark": (
        "admission.py",
        "reserve = self._watermark if book.seats else 0",
        "reserve = 0",
        "test_reference_scheduler.py",
    ),
    "who was preempted before is a victim again at once": (
        "policy.py",
        "candidates &= (known > table.floor[running]) & (table.rank[running] >= table.rank[asking])",
        "candidates &= table.rank[running] >= table.rank[asking]",
        "test_victims.py",
    ),
    "swap-in does not ask the index": (
        "memory.py",
        "hits = self._publication.find(first, valid)",
        "hits = np.zeros(0, np.int32)",
        MEMORY,
    ),
    "frames of a transfer leak when its request has ended": (
        "pressure.py",
        "        memory.moved(moving.frames)\n",
        "        if group.status is not Status.ENDED:\n            memory.moved(moving.frames)\n",
        SCHEDULER,
    ),
    "a leap goes a step too far": (
        "leap.py",
        "lasts: I64 = (table.limit[rows] - starts).astype(np.int64)",
        "lasts: I64 = (table.limit[rows] - starts).astype(np.int64) + 1",
        LEAPS,
    ),
    "what ends in a leap gives its frames back before the step after it is planned": (
        "leap.py",
        "growth.up_to(step + lead)",
        "growth.up_to(step)",
        LEAPS,
    ),
    "steps that a leap took count as none on the way to the next end": (
        "leap.py",
        "planner.passed(opened - 2)",
        "planner.passed(0)",
        LEAPS,
    ),
    "who has left in a leap grows on": (
        "leap.py",
        "alive = ahead.lasts[which] >= steps",
        "alive = ahead.lasts[which] >= 0",
        LEAPS,
    ),
    "rows that grow in one step of a leap do so out of order": (
        "leap.py",
        'order = room.argsort(kind="stable")',
        'order = len(room) - 1 - room[::-1].argsort(kind="stable")',
        LEAPS,
    ),
    "evicted content can still be found": (
        "holdings.py",
        "            self.index.drop(evicted)\n",
        "",
        MEMORY,
    ),
    "the source of a copy stays referenced": (
        "holdings.py",
        "            self.pool.give(np.array([source]))\n",
        "",
        SCHEDULER,
    ),
    "results of rows that are gone are taken in": (
        "commits.py",
        "plain = not (entry.gone or len(plan.fork_rows) or book.memory.keeps_tokens)\n",
        "plain = True\n",
        SCHEDULER,
    ),
    "decodes cost no budget": (
        "planner.py",
        "budget = self._config.token_budget - len(decodes)",
        "budget = self._config.token_budget",
        SCHEDULER,
    ),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The core, its tests and what they need, to be changed at will."""
    place = tmp_path_factory.mktemp("planted")
    for folder in ("engine/core", "tests/engine/core", "tests/reference"):
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (
        "pyproject.toml",
        "engine/__init__.py",
        "tests/__init__.py",
        "tests/conftest.py",
        "tests/engine/__init__.py",
    ):
        if (ROOT / file).exists():
            shutil.copy(ROOT / file, place / file)
    return place


def run(place, test):
    if test.endswith(".py"):
        options = ["-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
        command = [*options, f"tests/engine/core/{test}"]
    else:
        module, world = test.split(".")
        command = ["-c", WALK.format(module=module, world=world)]
    return subprocess.run(
        [
            sys.executable,
            "-B",
            *command,
        ],  # A file that changes twice in a second would be taken from its old bytecode.
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(copy, name):
    file, old, new, test = FAULTS[name]
    path = copy / "engine/core" / file
    sound = path.read_text()
    assert sound.count(old) == 1, f"the fault is out of date: {file} has no such passage"
    path.write_text(sound.replace(old, new))
    try:
        ran = run(copy, test)
    finally:
        path.write_text(sound)
    assert ran.returncode == 1, ran.stdout
    assert "Error" in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("test", sorted({fault[3] for fault in FAULTS.values()}))
def test_without_a_fault_they_pass(copy, test):
    assert run(copy, test).returncode == 0


def test_every_fault_is_a_passage_of_the_source():
    for file, old, _, test in FAULTS.values():
        assert (ROOT / "engine/core" / file).read_text().count(old) == 1, old
        module = test if test.endswith(".py") else f"{test.split('.')[0]}.py"
        assert (ROOT / "tests/engine/core" / module).exists()
