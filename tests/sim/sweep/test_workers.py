"""Worker processes: every job comes back once, whatever became of it."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from sim.sweep.workers import Failure, Workers
from tests.conftest import ROOT
from tests.sim.sweep import jobs


def results(workers):
    found = {}
    while ended := workers.wait():
        for job, result in ended:
            assert job not in found
            found[job] = result
    return found


@pytest.mark.parametrize("count", [1, 2])
def test_each_job_comes_back_once_with_its_result_or_its_error(count):
    with Workers(count) as workers:
        for number in range(6):
            workers.submit(number, jobs.slow_if_even, number)
        workers.submit("bad", jobs.refuse, "no such thing")
        workers.submit("bug", jobs.divide, 0)
        found = results(workers)
        assert workers.num_open == 0
    assert [found[number] for number in range(6)] == list(range(6))
    assert found["bad"] == Failure("no such thing", False)
    assert found["bug"].is_ours
    assert "ZeroDivisionError in jobs.py" in found["bug"].message
    assert "Traceback" in found["bug"].details


def test_a_dead_worker_is_told_and_the_others_go_on():
    with Workers(2) as workers:
        workers.submit("dies", jobs.die)
        for number in range(4):
            workers.submit(number, jobs.square, number)
        found = results(workers)
    assert "SIGKILL" in found.pop("dies").message
    assert found == {0: 0, 1: 1, 2: 4, 3: 9}


def test_workers_ignore_interrupts_and_import_nothing_heavy():
    with Workers(2) as workers:
        workers.submit("interrupt", jobs.interrupt_me)
        workers.submit("modules", jobs.heavy_modules)
        assert results(workers) == {"interrupt": "still here", "modules": []}


def test_an_interrupt_while_a_worker_starts_is_ignored_without_a_word(capfd):
    with Workers(2) as workers:
        workers.submit("work", jobs.square, 3)
        [child] = multiprocessing.active_children()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGINT)
        assert results(workers) == {"work": 9}
    assert capfd.readouterr().err == ""


def test_leaving_ends_the_processes_even_while_they_work():
    with Workers(2) as workers:
        workers.submit("first", jobs.process_id, 0)
        [(_, process)] = workers.wait()
        workers.submit("long", time.sleep, 60)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_ctrl_c_never_reaches_a_worker_not_even_the_first_of_a_program():
    program = (
        "from sim.sweep.workers import Workers\n"
        "from tests.sim.sweep import jobs\n"
        "with Workers(2) as workers:\n"
        "    for number in range(2):\n"
        "        workers.submit(number, jobs.interrupts_wait)\n"
        "    while ended := workers.wait():\n"
        "        print([result for _, result in ended])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "False" not in done.stdout
    assert done.stdout.count("True") == 2
