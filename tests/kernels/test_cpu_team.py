"""The team of threads: every item done once, whoever comes late, and an end that is one."""

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from kernels.cpu import build, program
from kernels.cpu.build import entry, is_built
from kernels.cpu.host import physical_cores
from kernels.cpu.paged import address
from kernels.cpu.team import Program, Team, allocate


def copies(frames: np.ndarray, pairs: np.ndarray, operations: int) -> np.ndarray:
    """A program that copies frames, the same ones in each operation."""
    p = Program()
    for _ in range(operations):
        p.add(program.COPY, address(frames), frames.shape[1], 0, 1, address(pairs), len(pairs))
    return p.build()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_run_does_all_of_its_items_before_it_returns(threads: int) -> None:
    team = Team(threads, 64)
    frames = allocate(64 * 192).reshape(64, 192)
    pairs = np.array([[i, 32 + i] for i in range(32)], np.int64)
    built = copies(frames, pairs, 3)

    for run in range(300):
        frames[:32] = run % 251
        frames[32:] = 255
        team.run(built)
        assert (frames == run % 251).all()
    team.close()


def test_operations_follow_each_other_with_what_came_before_visible() -> None:
    team = Team(3, 64)
    frames = allocate(101 * 64).reshape(101, 64)
    steps = [np.array([[i, i + 1]], np.int64) for i in range(100)]
    p = Program()
    for pair in steps:
        p.add(program.COPY, address(frames), 64, 0, 1, address(pair), 1)
    built = p.build()

    for run in range(100):
        frames[1:] = 0
        frames[0] = run + 1
        team.run(built)
        assert (frames == run + 1).all()
    team.close()


def test_threads_may_share_a_team() -> None:
    team = Team(2, 64)
    sets = [allocate(8 * 64).reshape(8, 64) for _ in range(3)]
    pairs = np.array([[0, i] for i in range(1, 8)], np.int64)
    wrong: list[int] = []

    def work(frames: np.ndarray) -> None:
        built = copies(frames, pairs, 2)
        for run in range(100):
            frames[0] = run
            team.run(built)
            if (frames != run).any():
                wrong.append(run)

    workers = [threading.Thread(target=work, args=(frames,)) for frames in sets]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    team.close()

    assert wrong == []


def begun(before: set[threading.Thread]) -> int:
    """Threads that were not there before; of those that were, some may end meanwhile."""
    return len(set(threading.enumerate()) - before)


def test_a_closed_team_has_no_threads_and_runs_nothing() -> None:
    before = set(threading.enumerate())
    team = Team(3, 64)
    assert begun(before) == 2
    team.close()
    team.close()

    assert begun(before) == 0
    with pytest.raises(ValueError, match="closed"):
        team.run(np.zeros((0, program.OPERATION_WORDS), np.int64))


def test_a_forgotten_team_has_no_threads_left_waiting_on_its_memory() -> None:
    before = set(threading.enumerate())
    team = Team(3, 64)
    team.run(np.zeros((0, program.OPERATION_WORDS), np.int64))
    assert begun(before) == 2

    del team
    gc.collect()

    assert begun(before) == 0


def test_a_team_has_at_least_one_thread() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Team(0, 64)
    assert physical_cores() >= 1


def test_a_program_refuses_what_does_not_fit_a_record() -> None:
    with pytest.raises(ValueError, match="15 operands"):
        Program().add(program.COPY, *range(16))


def test_machine_code_is_kept_for_the_next_start() -> None:
    entry()

    assert is_built()


def test_old_builds_go_and_this_one_stays_while_others_clean_up_too(tmp_path: Path) -> None:
    for age, name in enumerate(["own", "oldest", "old", "later", "latest"]):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (age, age))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")  # listed, and not there when asked its age

    build._prune(tmp_path / "own")

    left = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert left == ["later", "latest", "own"]


@pytest.mark.parametrize("size", [0, 1, 4096, 5 << 20])
def test_memory_starts_as_zeros_and_is_aligned_for_vectors(size: int) -> None:
    memory = allocate(size)

    assert len(memory) >= size
    assert not memory.any()
    assert memory.ctypes.data % 64 == 0
